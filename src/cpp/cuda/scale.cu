// The kernels of premul_sum's factor: scale_math.h by as many threads as the device holds at once.
#include "cuda/launch.h"
#include "cuda/reduce.h"
#include "cuda/scale_math.h"

namespace gpucomm::cuda {

template <class Form>
__global__ void __launch_bounds__(kThreads) scale_all(const __grid_constant__ ScaleArguments arguments) {
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  scale_share<Form>(arguments, thread, size_t{gridDim.x} * kThreads);
}

void scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
           cudaStream_t stream) {
  if (count == 0) return;
  const ScaleArguments arguments = arguments_of(dtype, to, from, count, factor);
  with_form(dtype, [&]<class Form>() {
    const size_t single = count - arguments.packs * (kPackBytes / sizeof(typename Form::Stored));
    const size_t work = std::max(arguments.packs, single);
    launch<scale_all<Form>>((work + kLanes - 1) / kLanes, stream, arguments);
  });
}

}  // namespace gpucomm::cuda
