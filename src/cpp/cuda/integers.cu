// int8 and int4 on CUDA.
#include "cuda/integers_program.h"
#include "cuda/launch.h"

namespace gpucomm::cuda {

const CodecKernels int8 = TileKernels<Int8>::named("int8");
const CodecKernels int4 = TileKernels<Int4>::named("int4");

}  // namespace gpucomm::cuda
