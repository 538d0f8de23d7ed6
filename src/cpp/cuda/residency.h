// How many thread blocks of a kernel a device holds at a time; and all kernels that there are.
#pragma once
#include "cuda/program.h"

namespace gpucomm::cuda {

inline constexpr unsigned kThreads = kWarps * kLanes;

// Of one kernel, for each device; 0: not asked yet. Objects of static storage, which put themselves into a
// list.
struct Residency {
  Residency(const void* kernel, unsigned threads) : kernel(kernel), threads(threads), next(first) {
    first = this;
  }

  const void* kernel;
  unsigned threads;  // of a thread block
  Residency* next;
  unsigned blocks[64] = {};

  inline static constinit Residency* first = nullptr;
};

template <auto kernel, unsigned kBlockWarps = kWarps>
inline Residency residency{reinterpret_cast<const void*>(kernel), kBlockWarps * kLanes};

// On the current device. Asked first, it loads the kernel.
unsigned resident_blocks(Residency& residency);
// All onto the current device. CUDA would load each when it is launched first, which may have to wait for
// what runs: another rank's part of a call that waits for this one's.
void load_kernels();
void check_launch();

}  // namespace gpucomm::cuda
