// int8 and int4 on CUDA.
#include "cuda/launch.h"

namespace gpucomm::cuda {

const Registry<CodecKernels>::Add int8{"int8", TileKernels<Int8>::kAll};
const Registry<CodecKernels>::Add int4{"int4", TileKernels<Int4>::kAll};

}  // namespace gpucomm::cuda
