// fp8_e4m3 and fp8_e5m2 on CUDA.
#include "cuda/launch.h"

namespace gpucomm::cuda {

const Registry<CodecKernels>::Add e4m3{"fp8_e4m3", TileKernels<E4m3>::kAll};
const Registry<CodecKernels>::Add e5m2{"fp8_e5m2", TileKernels<E5m2>::kAll};

}  // namespace gpucomm::cuda
