// bf16 and fp16 on CUDA.
#include "cuda/casts_program.h"
#include "cuda/launch.h"

namespace gpucomm::cuda {

const CodecKernels bf16 = TileKernels<Bf16>::named("bf16");
const CodecKernels fp16 = TileKernels<Fp16>::named("fp16");

}  // namespace gpucomm::cuda
