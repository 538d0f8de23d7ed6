// A word that kernels write and the host reads: in host memory, so that it can be read after the device is
// lost.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>

#include "cuda/check.h"

namespace gpucomm::cuda {

class StatusWord {
 public:
  StatusWord() {
    void* memory = nullptr;
    GPUCOMM_CUDA(cudaHostAlloc(&memory, sizeof(*host_), cudaHostAllocMapped | cudaHostAllocPortable));
    host_ = static_cast<unsigned long long*>(memory);
    *host_ = 0;
    void* seen = nullptr;
    const cudaError_t error = cudaHostGetDevicePointer(&seen, memory, 0);
    if (error != cudaSuccess) cudaFreeHost(memory);
    check(error, "cudaHostGetDevicePointer");
    device_ = static_cast<unsigned long long*>(seen);
  }
  ~StatusWord() { cudaFreeHost(host_); }
  StatusWord(const StatusWord&) = delete;
  StatusWord& operator=(const StatusWord&) = delete;

  unsigned long long* device() const { return device_; }
  unsigned long long value() const { return std::atomic_ref(*host_).load(std::memory_order_acquire); }

 private:
  unsigned long long* host_ = nullptr;
  unsigned long long* device_ = nullptr;
};

}  // namespace gpucomm::cuda
