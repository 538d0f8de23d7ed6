// What CUDA says of errors, and those that a test asks for.
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "gpus.h"

namespace {

struct Asked {
  struct Fault {
    cudaError_t error;
    int spared;  // calls before
  };
  std::mutex mutex;
  std::map<std::string, Fault> faults;  // by function
};
Asked& asked() {
  static auto* const one = new Asked;
  return *one;
}

const std::map<cudaError_t, std::pair<const char*, const char*>> kTexts = {
    {cudaErrorMemoryAllocation, {"cudaErrorMemoryAllocation", "out of memory"}},
    {cudaErrorNoDevice, {"cudaErrorNoDevice", "no CUDA-capable device is detected"}},
    {cudaErrorNoKernelImageForDevice, {"cudaErrorNoKernelImageForDevice", "no kernel image is available"}},
    {cudaErrorNotSupported, {"cudaErrorNotSupported", "operation not supported"}},
    {cudaErrorIllegalAddress, {"cudaErrorIllegalAddress", "an illegal memory access was encountered"}},
    {cudaErrorInvalidConfiguration, {"cudaErrorInvalidConfiguration", "invalid configuration argument"}},
    {cudaErrorStreamCaptureUnsupported,
     {"cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"}},
    {cudaErrorStreamCaptureInvalidated,
     {"cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"}},
    {cudaErrorInvalidResourceHandle, {"cudaErrorInvalidResourceHandle", "invalid resource handle"}}};

}  // namespace

cudaError_t emulated::fault(const char* function) {
  std::lock_guard lock(asked().mutex);
  const auto found = asked().faults.find(function);
  if (found == asked().faults.end() || found->second.spared-- > 0) return cudaSuccess;
  return result(found->second.error);
}

extern "C" {

// From here on a function fails with this error, after so many calls of it; 0: no longer.
void emulated_fail(const char* function, int error, int spared) {
  std::lock_guard lock(asked().mutex);
  asked().faults[function] = {static_cast<cudaError_t>(error), spared};
}

cudaError_t cudaGetLastError() { return std::exchange(emulated::last, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) {
  return kTexts.contains(error) ? kTexts.at(error).first : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return kTexts.contains(error) ? kTexts.at(error).second : "refused";
}

}  // extern "C"
