// fixed:EPS:WIDTH:WORLD on CUDA, and sums of what it coded.
#include "cuda/fixed_program.h"
#include "cuda/launch.h"

namespace gpucomm::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_coded_tiles(size_t count, size_t coded_bytes, const std::byte* from, std::byte* into,
                    Status* status) {
  const WarpExec ex;
  AddCoded<T, const WarpExec>{ex, count, coded_bytes, from, into, status}.run();
}

template <class T>
void add(const Job& job) {
  launch<add_coded_tiles<T>>(job.count / (kTile * Fixed<T>::kTiles) + 1, job.stream, job.count,
                             job.coded_bytes, job.from, job.to_slot, job.status);
}

// The width is in the spec.
template <CodecKernels::Launch narrow, CodecKernels::Launch middle, CodecKernels::Launch wide>
void by_width(const Job& job) {
  const int width = parse_fixed(job.argument).value().width;
  (width == 8 ? narrow : width == 16 ? middle : wide)(job);
}

template <CodecKernels::LaunchAll narrow, CodecKernels::LaunchAll middle, CodecKernels::LaunchAll wide>
void all_by_width(const Job* jobs, size_t count) {
  const int width = parse_fixed(jobs->argument).value().width;
  (width == 8 ? narrow : width == 16 ? middle : wide)(jobs, count);
}

using Narrow = TileKernels<Fixed<int8_t>>;
using Middle = TileKernels<Fixed<int16_t>>;
using Wide = TileKernels<Fixed<int32_t>>;

const CodecKernels fixed{"fixed", all_by_width<Narrow::encode, Middle::encode, Wide::encode>,
                         all_by_width<Narrow::decode, Middle::decode, Wide::decode>,
                         all_by_width<Narrow::recode, Middle::recode, Wide::recode>,
                         by_width<add<int8_t>, add<int16_t>, add<int32_t>>};

}  // namespace
}  // namespace gpucomm::cuda
