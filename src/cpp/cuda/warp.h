// Programs run by the threads of a warp.
#pragma once
#include "cuda/status.h"

namespace gpucomm::cuda {

template <unsigned kBlockWarps>
class WarpExecOf {
 public:
  template <class T>
  struct Lanes {
    T own;
    __device__ T& operator[](unsigned) { return own; }
    __device__ const T& operator[](unsigned) const { return own; }
  };

  __device__ size_t warp() const { return size_t{blockIdx.x} * kBlockWarps + warp_in_block(); }
  __device__ size_t warps() const { return size_t{gridDim.x} * kBlockWarps; }
  __device__ unsigned warp_in_block() const { return threadIdx.x / kLanes; }

  template <class Call>
  __device__ __forceinline__ void each(const Call& call) const {
    call(threadIdx.x % kLanes);
  }
  template <class Call>
  __device__ __forceinline__ void each_together(const Call& call) const {
    call(threadIdx.x % kLanes);
    __syncwarp();  // ptxas moves no load behind it
  }

  // Whether any lane gives true.
  template <class Call>
  __device__ __forceinline__ bool any(const Call& call) const {
    return __any_sync(~0u, call(threadIdx.x % kLanes));
  }

  // The greatest of what the lanes give.
  template <class Call>
  __device__ __forceinline__ uint32_t max(const Call& call) const {
    uint32_t most = call(threadIdx.x % kLanes);
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, most);
#else
    for (unsigned step = kLanes / 2; step; step /= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, most, step);
      most = other > most ? other : most;
    }
    return most;
#endif
  }

  // What a lane this many further, or before, had in an earlier phase: every lane must ask.
  template <class T>
  __device__ __forceinline__ T other(const Lanes<T>& values, unsigned, unsigned step) const {
    return __shfl_xor_sync(~0u, values.own, step);
  }

  __device__ void or_into(uint32_t& word, uint32_t bits) const { atomicOr(&word, bits); }
  __device__ void report(Status* status, Status fault) const {
    atomicMax_system(status, fault);  // other GPUs may have the word too
  }
};
using WarpExec = WarpExecOf<kWarps>;

}  // namespace gpucomm::cuda
