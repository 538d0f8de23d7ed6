// What gpucomm calls of the driver. A context is its GPU.
#include <cuda.h>

#include <map>
#include <string>

#include "gpus.h"

using namespace emulated;

extern "C" {

// For the tests, by ctypes: the current GPU of this thread; -1: none, as at its beginning.
void emulated_make_current(int gpu) {
  current.clear();
  if (gpu >= 0) current.push_back(gpu);
}

static CUresult device_get(CUdevice* device, int index) { return *device = index, CUDA_SUCCESS; }
static CUresult retain(CUcontext* context, CUdevice device) {
  return *context = reinterpret_cast<CUcontext>(&gpu(device)), CUDA_SUCCESS;
}
static CUresult release(CUdevice) { return CUDA_SUCCESS; }
static CUresult push(CUcontext context) {
  return current.push_back(reinterpret_cast<Gpu*>(context)->index), CUDA_SUCCESS;
}
static CUresult pop(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(&here());
  return current.pop_back(), CUDA_SUCCESS;
}
static CUresult context_of(CUstream stream, CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(const_cast<void*>(stream_of(stream).owner));
  return CUDA_SUCCESS;
}
static CUresult attribute(void* value, CUpointer_attribute, CUdeviceptr) {
  return *static_cast<int*>(value) = !fault("cuPointerGetAttribute"), CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  static const std::map<std::string, void*> all = {
      {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain)},
      {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(release)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop)},
      {"cuStreamGetCtx", reinterpret_cast<void*>(context_of)},
      {"cuPointerGetAttribute", reinterpret_cast<void*>(attribute)}};
  const auto entry = all.find(name);
  *found = entry == all.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  *function = entry == all.end() ? nullptr : entry->second;
  return cudaSuccess;
}

}  // extern "C"
