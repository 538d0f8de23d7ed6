// What gpucomm calls of the CUDA runtime about GPUs and their memory, which other processes may open.
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "devices/shared_memory.h"
#include "gpus.h"
#include "handles.h"

using namespace gpucomm;
using namespace emulated;

namespace {

constexpr int kProcessors = 3;
std::atomic<size_t> most_bytes{1 << 30};  // that cudaMalloc gives at once

struct Memory {
  std::mutex mutex;
  std::map<const void*, SharedMemory> blocks;
};
Memory& memory_known() {
  static auto* const one = new Memory;
  return *one;
}

cudaError_t keep(SharedMemory own, void** memory) {
  *memory = own.data();
  std::lock_guard lock(memory_known().mutex);
  memory_known().blocks.emplace(*memory, std::move(own));
  return cudaSuccess;
}

}  // namespace

extern "C" {

// For the tests, by ctypes.
void emulated_limit(size_t bytes) { most_bytes = bytes; }

cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t told = fault(__func__)) return told;
  return *count = kGpus, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = current.back(), cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulated GPU");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = kProcessors, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  return *can = fault(__func__) == cudaSuccess, cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return fault(__func__); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 1, cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (disturbs_capture()) return result(cudaErrorStreamCaptureUnsupported);
  return bytes > most_bytes ? result(cudaErrorMemoryAllocation) : keep(SharedMemory(bytes), memory);
}
// As CUDA does, it waits for all that the GPU was given.
cudaError_t cudaFree(void* memory) {
  if (disturbs_capture()) return result(cudaErrorStreamCaptureUnsupported);
  here().under_way.wait();
  std::lock_guard lock(memory_known().mutex);
  memory_known().blocks.erase(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (disturbs_capture()) return result(cudaErrorStreamCaptureUnsupported);
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** seen, void* memory, unsigned) {
  return *seen = memory, cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  here().under_way.wait();
  return std::free(memory), cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = most_bytes, *total = 1 << 30, cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  if (const cudaError_t told = fault(__func__)) return told;
  std::lock_guard lock(memory_known().mutex);
  return write(handle, memory_known().blocks.at(memory).handle()), cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  if (const cudaError_t told = fault(__func__)) return told;
  return keep(SharedMemory(std::string(handle.reserved)), memory);
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return cudaFree(memory); }

}  // extern "C"
