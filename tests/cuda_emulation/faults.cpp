// What CUDA says of errors, and those that a test asks for.
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "gpus.h"

namespace {

struct Asked {
  std::mutex mutex;
  std::map<std::string, cudaError_t> errors;  // by function
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
    {cudaErrorInvalidResourceHandle, {"cudaErrorInvalidResourceHandle", "invalid resource handle"}}};

}  // namespace

cudaError_t emulated::fault(const char* function) {
  std::lock_guard lock(asked().mutex);
  const auto found = asked().errors.find(function);
  return found == asked().errors.end() ? cudaSuccess : result(found->second);
}

extern "C" {

// From here on a function fails with this error; 0: no longer.
void emulated_fail(const char* function, int error) {
  std::lock_guard lock(asked().mutex);
  asked().errors[function] = static_cast<cudaError_t>(error);
}

cudaError_t cudaGetLastError() { return std::exchange(emulated::last, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) {
  return kTexts.contains(error) ? kTexts.at(error).first : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return kTexts.contains(error) ? kTexts.at(error).second : "refused";
}

}  // extern "C"
