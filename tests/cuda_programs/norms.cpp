// The sums of squares of a GPU on the host, warp by warp and lane by lane; test_cuda_norms.py calls them.
// Every access is looked at: it must be aligned, and within the memory that the call names.
#include "cuda/norms_program.h"
#include "loops.h"

namespace {

struct Range {
  const void* begin;
  size_t bytes;
};
Range ranges[3];
unsigned long long wrong = 0;

}  // namespace

namespace gpucomm::cuda {

void accessed(const void* at, size_t bytes, size_t alignment) {
  const auto* first = static_cast<const std::byte*>(at);
  bool inside = false;
  for (const Range& range : ranges) {
    const auto* begin = static_cast<const std::byte*>(range.begin);
    inside |= begin && first >= begin && first + bytes <= begin + range.bytes;
  }
  wrong += !inside || reinterpret_cast<uintptr_t>(at) % alignment != 0;
}

}  // namespace gpucomm::cuda

// Seed 0 runs warps and lanes in order, another in random ones. Returns the accesses that were wrong.
extern "C" unsigned long long cuda_squares(int dtype, const std::byte* x, size_t count, unsigned blocks,
                                           const std::byte* became, int times, std::byte* parts,
                                           unsigned seed) {
  using namespace gpucomm;
  using namespace gpucomm::cuda;
  const Squared of{static_cast<Dtype>(dtype), x, count, blocks, became, times};
  const SquaresArguments arguments = arguments_of(of, parts);
  const size_t bytes = count * gpucomm::size_of(of.dtype);
  ranges[0] = {x, bytes}, ranges[1] = {became, bytes}, ranges[2] = {parts, kNormParts * sizeof(NormSums)};
  wrong = 0;
  size_t order[kNormParts];
  std::iota(order, order + kNormParts, size_t{0});
  if (seed) std::shuffle(order, order + kNormParts, std::minstd_rand(seed));
  for (const size_t warp : order) {
    const Loops ex(warp, kNormParts, seed);
    Squares<const Loops>{ex, arguments}.run();
  }
  return wrong;
}
