// Every environment variable of the core, read once.
#pragma once
#include <string>

namespace gpucomm {

struct Env {
  std::string simd;  // GPUCOMM_SIMD: v1, v3 or v4 forces a SIMD level; empty: the best of this CPU
  int spin_us;  // GPUCOMM_SPIN_US: how long a wait stays awake before it sleeps; -1: the default of its place
  int heap_mib;   // GPUCOMM_HEAP_MIB: each rank's shared heap; 0: none; -1: its share of the machine's memory
  int arena_mib;  // GPUCOMM_ARENA_MIB: each rank's memory on its device that other processes read
  // GPUCOMM_DEVICE_TRANSPORT: how arrays on devices travel; auto, arena, nccl, staged.
  std::string device_transport;
  // GPUCOMM_CMA: 0: never read another process's private memory; 2: also where it lies on small pages,
  // whether that was measured to be quick (1) or not.
  int cma;
  int llc_mib;  // GPUCOMM_LLC_MIB: of the last-level cache; -1: what the kernel says
};

const Env& env();

}  // namespace gpucomm
