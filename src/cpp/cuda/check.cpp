#include "cuda/check.h"

#include "base/error.h"

namespace gpucomm::cuda {

bool sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorExternalDevice:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
      return true;
    default:
      return false;
  }
}

static const char* meaning(cudaError_t error) {
  if (sticky(error)) return "; this process cannot use the device any more";
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "; gpucomm was built for architectures " GPUCOMM_ARCHITECTURES
             ", GPUCOMM_CUDA_ARCHITECTURES builds it for others";
    case cudaErrorInitializationError:
      return "; a process forked from one that used CUDA cannot use it: start it anew (spawn)";
    case cudaErrorInvalidResourceHandle:
      return "; is the stream one of another device?";
    case cudaErrorSystemNotReady:
      return "; is the fabric manager of this machine running?";
    default:
      return "";
  }
}

std::string describe(cudaError_t error) {
  return concat(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")", meaning(error));
}

std::string sentence(cudaError_t error, const char* call) {
  const std::string text = call;
  return concat(text.substr(0, text.find('(')), " failed: ", describe(error));
}

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  if (!sticky(error)) cudaGetLastError();
  int device = -1;
  const bool named = cudaGetDevice(&device) == cudaSuccess;
  fail(ErrorKind::unavailable, named ? concat("cuda:", device, ": ") : "CUDA: ", sentence(error, call));
}

}  // namespace gpucomm::cuda
