// Copies: one by CUDA's own, several as rows of thread blocks of one kernel.
#include "cuda/check.h"
#include "cuda/copy_program.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {
namespace {

constexpr size_t kMost = 64;  // in a kernel
struct Copies {
  Copy rows[kMost];
};

__global__ void __launch_bounds__(kThreads) copy_spans(const __grid_constant__ Copies copies) {
  const Copy& row = copies.rows[blockIdx.y];
  copy_span(WarpExec(), row.from, row.to, row.bytes);
}

}  // namespace

void copy(const std::vector<Copy>& all, cudaStream_t stream) {
  if (all.size() == 1) {
    GPUCOMM_CUDA(cudaMemcpyAsync(all[0].to, all[0].from, all[0].bytes, cudaMemcpyDefault, stream));
    return;
  }
  constexpr size_t kGroup = 16 * kLanes * kAtOnce;
  for (size_t begin = 0; begin < all.size(); begin += kMost) {
    Copies copies;
    const size_t some = std::min(all.size() - begin, kMost);
    Rows rows;
    for (size_t i = 0; i < some; ++i) {
      copies.rows[i] = all[begin + i];
      rows.add(all[begin + i].bytes / kGroup + 1);
    }
    launch<copy_spans>(rows, stream, copies);
  }
}

}  // namespace gpucomm::cuda
