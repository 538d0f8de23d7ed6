// Asked once per kernel and device, before its first launch.
#include "cuda/residency.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "cuda/check.h"
#include "cuda/context.h"

namespace gpucomm::cuda {

unsigned resident_blocks(Residency& residency) {
  int device = 0, processors = 0, each = 0;
  GPUCOMM_CUDA(cudaGetDevice(&device));
  static_assert(std::size(decltype(Residency::blocks){}) == kDevicesKnown);
  const bool keeps = device < kDevicesKnown;
  unsigned unknown = 0;
  const std::atomic_ref blocks(keeps ? residency.blocks[device] : unknown);
  if (const unsigned known = blocks.load(std::memory_order_relaxed)) return known;
  const OutsideCapture outside;
  cudaFuncAttributes loaded;
  GPUCOMM_CUDA(cudaFuncGetAttributes(&loaded, residency.kernel));
  GPUCOMM_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  GPUCOMM_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, residency.kernel,
                                                             static_cast<int>(residency.threads), 0));
  blocks.store(static_cast<unsigned>(processors * std::max(each, 1)), std::memory_order_relaxed);
  return blocks.load(std::memory_order_relaxed);
}

void load_kernels() {
  for (Residency* one = Residency::first; one; one = one->next) resident_blocks(*one);
}

void check_launch() { check(cudaGetLastError(), "a kernel's launch"); }

}  // namespace gpucomm::cuda
