// fp8_e4m3 and fp8_e5m2 on CUDA.
#include "cuda/fp8_program.h"
#include "cuda/launch.h"

namespace gpucomm::cuda {

const CodecKernels e4m3 = TileKernels<E4m3>::named("fp8_e4m3");
const CodecKernels e5m2 = TileKernels<E5m2>::named("fp8_e5m2");

}  // namespace gpucomm::cuda
