// How many thread blocks of a kernel a device holds at a time.
#pragma once
#include "cuda/program.h"

namespace gpucomm::cuda {

inline constexpr unsigned kThreads = kWarps * kLanes;

// Of one kernel, for each device; 0: not asked yet.
struct Residency {
  unsigned blocks[64] = {};
};

// On the current device.
unsigned resident_blocks(const void* kernel, Residency& residency);
void check_launch();

}  // namespace gpucomm::cuda
