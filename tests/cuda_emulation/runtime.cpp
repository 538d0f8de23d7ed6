// What gpucomm calls of the CUDA runtime about GPUs.
#include <cstring>

#include "gpus.h"

using namespace emulated;

namespace {

constexpr int kProcessors = 3;

// Kernels that have been loaded onto a GPU.
struct Loaded {
  std::mutex mutex;
  std::set<std::pair<const void*, int>> kernels;
};
Loaded& loaded() {
  static auto* const one = new Loaded;
  return *one;
}

}  // namespace

// A grid is never empty. A kernel that is loaded when it is launched may have to wait for what runs, which
// may wait for it: so says CUDA's guide of lazy loading.
bool emulated::launchable(const void* kernel, dim3 grid, unsigned threads) {
  {
    std::lock_guard lock(loaded().mutex);
    if (!loaded().kernels.contains({kernel, here().index}))
      give_up("a kernel is launched that is not loaded");
  }
  const auto within = [](unsigned count, unsigned most) { return count >= 1 && count <= most; };
  const bool is = within(grid.x, 0x7fffffff) && within(grid.y, 65535) && within(grid.z, 65535);
  if (!is || !within(threads, 1024)) return result(cudaErrorInvalidConfiguration), false;
  return true;
}

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t told = fault(__func__)) return told;
  return *count = kGpus, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = current.empty() ? 0 : current.back(), cudaSuccess; }
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
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  std::lock_guard lock(loaded().mutex);
  return loaded().kernels.emplace(kernel, here().index), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 1, cudaSuccess;
}

}  // extern "C"
