// The kernels of operations from one array to another: pairs_math.h by as many threads as the device holds.
#include "cuda/launch.h"
#include "cuda/pairs_math.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {

template <class Form, class Operation>
__global__ void __launch_bounds__(kThreads) pair_all(const __grid_constant__ PairArguments arguments) {
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  pair_share<Form, Operation>(arguments, thread, size_t{gridDim.x} * kThreads);
}

template <class Form, class Operation>
static void launch_pairs(const PairArguments& arguments, cudaStream_t stream) {
  const size_t single = arguments.count - arguments.packs * (kPackBytes / sizeof(typename Form::Stored));
  const size_t work = std::max(arguments.packs, single);
  if (work) launch<pair_all<Form, Operation>>((work + kLanes - 1) / kLanes, stream, arguments);
}

void scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
           cudaStream_t stream) {
  const PairArguments arguments = arguments_of(dtype, to, from, count, factor);
  with_form(dtype, [&]<class Form>() { launch_pairs<Form, Multiplied>(arguments, stream); });
}

void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                cudaStream_t stream) {
  GPUCOMM_CHECK(dtype != Dtype::float64);
  const PairArguments arguments = arguments_of(dtype, error, dense, count, times);
  with_narrow_form(dtype, [&]<class Form>() { launch_pairs<Form, Difference>(arguments, stream); });
}

}  // namespace gpucomm::cuda
