// A device's primary context, which the CUDA runtime and all libraries of a process share, made current for a
// scope. By the driver's stack of contexts: cudaSetDevice back to the caller's device would make a context on
// a device that the caller never used.
#pragma once
#include <cuda_runtime_api.h>

#include "base/error.h"

// What cuda.h calls them.
struct CUctx_st;

namespace gpucomm::cuda {

class Context {
 public:
  explicit Context(int index);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The caller's context is current again at its end.
  class Scope {
   public:
    explicit Scope(const Context& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  // Whether a stream, current or a default one, is of this context; true where the driver does not tell.
  bool owns(cudaStream_t stream) const;

 private:
  int device_ = 0;  // as the driver calls it
  CUctx_st* primary_ = nullptr;
};

// Whether an array lies in memory of cudaMalloc: access to other is given by its maker alone.
bool of_malloc(const void* array);

// For calls that enqueue nothing: they then disturb no capture of a CUDA graph that is going on.
class OutsideCapture {
 public:
  OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// What a process that ends, or a device that is lost, cannot give back is gone anyway.
template <class Action>
void quietly(const Context& context, Action action) noexcept {
  try {
    const Context::Scope scope(context);
    const OutsideCapture outside;
    if (action() != cudaSuccess) cudaGetLastError();
  } catch (const Error&) {
  }
}

}  // namespace gpucomm::cuda
