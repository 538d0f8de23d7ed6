#include "cuda/context.h"

#include <cuda.h>

#include "base/error.h"
#include "cuda/check.h"

namespace gpucomm::cuda {
namespace {

// libcuda is not linked: the runtime, which has loaded it, knows its functions.
template <class Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  GPUCOMM_CUDA(cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &found));
#else
  GPUCOMM_CUDA(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess)
    fail(ErrorKind::unavailable, "CUDA: the driver has no function ", name);
  return reinterpret_cast<Function*>(function);
}

struct Driver {
  decltype(cuDevicePrimaryCtxRetain)* retain =
      driver_function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  decltype(cuDevicePrimaryCtxRelease)* release =
      driver_function<decltype(cuDevicePrimaryCtxRelease)>("cuDevicePrimaryCtxRelease");
  decltype(cuCtxPushCurrent)* push = driver_function<decltype(cuCtxPushCurrent)>("cuCtxPushCurrent");
  decltype(cuCtxPopCurrent)* pop = driver_function<decltype(cuCtxPopCurrent)>("cuCtxPopCurrent");
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

// The codes of both interfaces are the same numbers.
void check_driver(CUresult result, const char* call) { check(static_cast<cudaError_t>(result), call); }

}  // namespace

Context::Context(int device) : device_(device) {
  check_driver(driver().retain(&primary_, device), "cuDevicePrimaryCtxRetain");
}

Context::~Context() { driver().release(device_); }

Context::Scope::Scope(const Context& context) {
  check_driver(driver().push(context.primary_), "cuCtxPushCurrent");
}

Context::Scope::~Scope() {
  CUcontext popped = nullptr;
  driver().pop(&popped);
}

}  // namespace gpucomm::cuda
