// zfp:R on CUDA.
#include "cuda/launch.h"

namespace gpucomm::cuda {

const Registry<CodecKernels>::Add zfp{"zfp", TileKernels<Zfp>::kAll};

}  // namespace gpucomm::cuda
