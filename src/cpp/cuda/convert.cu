// convert_program.h on CUDA.
#include "cuda/convert_program.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {

static __global__ void __launch_bounds__(kThreads) convert_all(Dense from, Dense to) {
  convert_tiles(WarpExec(), from, to);
}

void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count, cudaStream_t stream) {
  if (!count) return;
  launch<convert_all>(count / kTile + 1, stream, dense_of(from, in, count), dense_of(to, out, count));
}

}  // namespace gpucomm::cuda
