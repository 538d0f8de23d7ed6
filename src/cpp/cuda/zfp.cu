// zfp:R on CUDA.
#include "cuda/launch.h"
#include "cuda/zfp_program.h"

namespace gpucomm::cuda {

const CodecKernels zfp = TileKernels<Zfp>::named("zfp");

}  // namespace gpucomm::cuda
