// zfp:R on CUDA.
#include "cuda/launch.h"
#include "cuda/zfp_program.h"

namespace gpucomm::cuda {
namespace {

template <CodecKernels::LaunchAll word, CodecKernels::LaunchAll any>
void by_rate(const Job* jobs, size_t count) {
  (fills_words(jobs->argument) ? word : any)(jobs, count);
}

using Word = TileKernels<ZfpWord>;
using Any = TileKernels<Zfp>;

const CodecKernels zfp{"zfp", by_rate<Word::encode, Any::encode>, by_rate<Word::decode, Any::decode>,
                       by_rate<Word::recode, Any::recode>};

}  // namespace
}  // namespace gpucomm::cuda
