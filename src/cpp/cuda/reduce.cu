// The kernels of reductions: fold_math.h by as many threads as the device holds at once.
#include "cuda/check.h"
#include "cuda/fold_table.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {

// Of few arrays, so that several fit into the parameters of a kernel: each a row of thread blocks.
constexpr size_t kFew = 8;
struct Folds {
  FoldArgumentsOf<kFew> rows[kFew];
};

template <class Form, class Operation, int kSources>
__global__ void __launch_bounds__(kThreads) fold_few(const __grid_constant__ Folds folds) {
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  fold_share<Form, Operation, kSources>(folds.rows[blockIdx.y], thread, size_t{gridDim.x} * kThreads);
}

template <class Form, class Operation>
__global__ void __launch_bounds__(kThreads) fold(const __grid_constant__ FoldArguments arguments) {
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  fold_share<Form, Operation, 0>(arguments, thread, size_t{gridDim.x} * kThreads);
}

namespace {

// Packs, or single elements where these are more.
template <class Form, class Arguments>
size_t groups_of(const Arguments& fold) {
  const size_t single = fold.count - fold.packs * (kPackBytes / sizeof(typename Form::Stored));
  return (std::max(fold.packs, single) + kLanes - 1) / kLanes;
}

// As on the host: one source is moved as it is, NaN too.
void copy(const Fold& fold, cudaStream_t stream) {
  const size_t bytes = fold.count * size_of(fold.dtype);
  for (std::byte* to : fold.destinations)
    if (to != fold.sources[0])
      GPUCOMM_CUDA(cudaMemcpyAsync(to, fold.sources[0], bytes, cudaMemcpyDefault, stream));
}

template <class Form, class Operation, int kSources>
void launch_few(const std::vector<Fold>& all, cudaStream_t stream) {
  Folds folds;
  Rows rows;
  const auto launch_rows = [&] {
    if (rows.count) launch<fold_few<Form, Operation, kSources>>(rows, stream, folds);
    rows = {};
  };
  for (const Fold& fold : all) {
    if (!fold.count) continue;
    FoldArgumentsOf<kFew>& row = folds.rows[rows.count];
    row = arguments_of<kFew>(fold);
    rows.add(groups_of<Form>(row));
    if (rows.count == kFew) launch_rows();
  }
  launch_rows();
}

template <class Form, class Operation>
void launch_each(const std::vector<Fold>& all, cudaStream_t stream) {
  for (const Fold& one : all) {
    const FoldArguments arguments = arguments_of(one);
    if (one.count) launch<fold<Form, Operation>>(groups_of<Form>(arguments), stream, arguments);
  }
}

bool few(const Fold& fold) { return fold.destinations.size() <= kFew; }

}  // namespace

void reduce(const std::vector<Fold>& all, cudaStream_t stream) {
  const Fold& first = all[0];
  const int sources = static_cast<int>(first.sources.size());
  if (sources == 1 && first.divisor <= 1) {
    for (const Fold& fold : all) copy(fold, stream);
    return;
  }
  const int known = std::all_of(all.begin(), all.end(), few) ? sources : 0;
  with_fold(first.dtype, first.op, known, [&]<class Form, class Operation, int kSources>() {
    if constexpr (kSources)
      launch_few<Form, Operation, kSources>(all, stream);
    else
      launch_each<Form, Operation>(all, stream);
  });
}

}  // namespace gpucomm::cuda
