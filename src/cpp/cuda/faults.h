// A word that kernels write and the host reads: in host memory, so that it can be read after the device is
// lost.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>

#include "cuda/check.h"
#include "cuda/coding.h"
#include "cuda/context.h"
#include "cuda/status.h"
#include "devices/device.h"
#include "devices/releases.h"

namespace gpucomm::cuda {

class CudaFaults final : public CodingFaults {
 public:
  // These stay longer.
  CudaFaults(const Context& context, Releases& releases) : context_(context), releases_(releases) {
    const Context::Scope scope(context);
    const OutsideCapture outside;
    void *memory = nullptr, *seen = nullptr;
    GPUCOMM_CUDA(cudaHostAlloc(&memory, sizeof(Status), cudaHostAllocMapped | cudaHostAllocPortable));
    host_ = static_cast<Status*>(memory);
    *host_ = 0;
    const cudaError_t error = cudaHostGetDevicePointer(&seen, memory, 0);
    if (error != cudaSuccess) cudaFreeHost(memory);
    check(error, "cudaHostGetDevicePointer");
    device_ = static_cast<Status*>(seen);
  }
  ~CudaFaults() override {
    releases_.run(
        [&context = context_, host = host_] { quietly(context, [&] { return cudaFreeHost(host); }); });
  }
  CudaFaults(const CudaFaults&) = delete;
  CudaFaults& operator=(const CudaFaults&) = delete;

  Status* device() const { return device_; }
  std::string text() const override {
    return describe_status(std::atomic_ref(*host_).load(std::memory_order_acquire));
  }

 private:
  const Context& context_;
  Releases& releases_;
  Status *host_ = nullptr, *device_ = nullptr;
};

}  // namespace gpucomm::cuda
