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
  template <class Function>
  struct Entry {
    explicit Entry(const char* name) : call(driver_function<Function>(name)) {}
    Function* call;
  };
  Entry<decltype(cuDeviceGet)> device{"cuDeviceGet"};
  Entry<decltype(cuDevicePrimaryCtxRetain)> retain{"cuDevicePrimaryCtxRetain"};
  Entry<decltype(cuDevicePrimaryCtxRelease)> release{"cuDevicePrimaryCtxRelease"};
  Entry<decltype(cuCtxPushCurrent)> push{"cuCtxPushCurrent"};
  Entry<decltype(cuCtxPopCurrent)> pop{"cuCtxPopCurrent"};
  Entry<decltype(cuStreamGetCtx)> context_of{"cuStreamGetCtx"};
  Entry<decltype(cuPointerGetAttribute)> attribute{"cuPointerGetAttribute"};
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

// The codes of both interfaces are the same numbers.
void check_driver(CUresult result, const char* call) { check(static_cast<cudaError_t>(result), call); }

}  // namespace

Context::Context(int index) {
  check_driver(driver().device.call(&device_, index), "cuDeviceGet");
  check_driver(driver().retain.call(&primary_, device_), "cuDevicePrimaryCtxRetain");
}

Context::~Context() { driver().release.call(device_); }

bool Context::owns(cudaStream_t stream) const {
  CUcontext context = nullptr;
  return driver().context_of.call(stream, &context) != CUDA_SUCCESS || context == primary_;
}

bool of_malloc(const void* array) {
  int is = 0;  // a whole one is written, though it says yes or no
  check_driver(driver().attribute.call(&is, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                       reinterpret_cast<CUdeviceptr>(array)),
               "cuPointerGetAttribute");
  return is != 0;
}

Context::Scope::Scope(const Context& context) {
  check_driver(driver().push.call(context.primary_), "cuCtxPushCurrent");
}

Context::Scope::~Scope() {
  CUcontext popped = nullptr;
  driver().pop.call(&popped);
}

}  // namespace gpucomm::cuda
