// bf16 and fp16 on CUDA.
#include "cuda/launch.h"

namespace gpucomm::cuda {

const Registry<CodecKernels>::Add bf16{"bf16", TileKernels<Bf16>::kAll};
const Registry<CodecKernels>::Add fp16{"fp16", TileKernels<Fp16>::kAll};

}  // namespace gpucomm::cuda
