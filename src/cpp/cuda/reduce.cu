// The kernels of reductions: fold_math.h by as many threads as the device holds at once.
#include "cuda/check.h"
#include "cuda/fold_table.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {

template <class Form, class Operation, int kSources>
__global__ void __launch_bounds__(kThreads) fold(const __grid_constant__ FoldArguments arguments) {
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  fold_share<Form, Operation, kSources>(arguments, thread, size_t{gridDim.x} * kThreads);
}

namespace {

template <class Form, class Operation, int kSources>
void launch_fold(const FoldArguments& arguments, cudaStream_t stream) {
  const size_t single = arguments.count - arguments.packs * (kPackBytes / sizeof(typename Form::Stored));
  const size_t work = std::max(arguments.packs, single);
  launch<fold<Form, Operation, kSources>>((work + kLanes - 1) / kLanes, stream, arguments);
}

// As on the host: one source is moved as it is, NaN too.
void copy(const FoldArguments& arguments, size_t bytes, cudaStream_t stream) {
  for (int d = 0; d < arguments.destination_count; ++d)
    if (arguments.destinations[d] != arguments.sources[0])
      GPUCOMM_CUDA(
          cudaMemcpyAsync(arguments.destinations[d], arguments.sources[0], bytes, cudaMemcpyDefault, stream));
}

}  // namespace

void reduce(const Fold& fold, cudaStream_t stream) {
  const FoldArguments arguments = arguments_of(fold);
  if (fold.count == 0) return;
  if (arguments.source_count == 1 && arguments.divisor == 1)
    return copy(arguments, fold.count * size_of(fold.dtype), stream);
  with_fold(fold.dtype, fold.op, arguments.source_count, [&]<class Form, class Operation, int kSources>() {
    launch_fold<Form, Operation, kSources>(arguments, stream);
  });
}

}  // namespace gpucomm::cuda
