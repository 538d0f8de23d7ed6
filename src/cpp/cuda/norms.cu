// Sums of squares on CUDA: a warp for each part, so the same sums whatever the device.
#include "cuda/launch.h"
#include "cuda/norms_program.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {

static __global__ void __launch_bounds__(kThreads) add_parts(const __grid_constant__ SquaresArguments of) {
  const WarpExec ex;
  Squares<WarpExec>{ex, of}.run();
}

void add_squares(const Squared& of, std::byte* parts, cudaStream_t stream) {
  static_assert(kNormParts % kWarps == 0);
  if (!of.count) return;
  resident_blocks(residency<add_parts>);  // loads it
  add_parts<<<kNormParts / kWarps, kThreads, 0, stream>>>(arguments_of(of, parts));
  check_launch();
}

}  // namespace gpucomm::cuda
