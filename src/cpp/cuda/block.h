// Programs run by all threads of a thread block: its "lanes" are kThreads.
#pragma once
#include "cuda/residency.h"
#include "cuda/status.h"

namespace gpucomm::cuda {

class BlockExec {
 public:
  template <class T>
  struct Lanes {
    T own;
    __device__ T& operator[](unsigned) { return own; }
  };

  template <class Call>
  __device__ __forceinline__ void each(const Call& call) const {
    call(threadIdx.x);
    __syncthreads();
  }

  __device__ void report(Status* status, Status fault) const {
    atomicMax_system(status, fault);  // other GPUs may have the word too
  }
};

}  // namespace gpucomm::cuda
