#include "codecs/norms.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codecs/floats.h"

namespace gpucomm {
namespace {

constexpr size_t kRun = 1024;  // the largest block

void add_blocks(const float* magnitudes, size_t count, unsigned blocks, NormSums& sums) {
  for (unsigned size = 0; size < kBlockSizes; ++size) {
    if (!(blocks >> size & 1) || size == 0) continue;
    for (size_t first = 0, block = size_t{1} << size; first < count; first += block) {
      const size_t end = std::min(count, first + block);
      const double most = *std::max_element(magnitudes + first, magnitudes + end);
      sums.squares[size] += most * most * static_cast<double>(end - first);
    }
  }
}

void add_lost(const float* x, const float* became, size_t count, double times, NormSums& sums) {
  for (size_t i = 0; i < count; ++i) {
    const double lost = std::isfinite(x[i]) ? times * (double{became[i]} - double{x[i]}) : 0;
    sums.squares[0] += lost * lost;
  }
}

}  // namespace

void add_squares(const Squared& of, NormSums& sums) {
  float values[kRun], became[kRun];
  const size_t item = size_of(of.dtype);
  for (size_t begin = 0; begin < of.count; begin += kRun) {
    const size_t n = std::min(kRun, of.count - begin);
    widen(of.dtype, of.x + begin * item, n, values);
    if (of.became) {
      widen(of.dtype, of.became + begin * item, n, became);
      add_lost(values, became, n, of.times, sums);
      continue;
    }
    for (size_t i = 0; i < n; ++i) {
      values[i] = std::fabs(values[i]), sums.squares[0] += double{values[i]} * values[i];
      sums.largest = std::max(sums.largest, double{values[i]});
    }
    add_blocks(values, n, of.blocks, sums);
  }
}

NormSums total_of(const std::vector<NormSums>& parts) {
  NormSums total;
  for (const NormSums& part : parts) {
    for (unsigned size = 0; size < kBlockSizes; ++size) total.squares[size] += part.squares[size];
    total.largest = std::max(total.largest, part.largest);
  }
  return total;
}

}  // namespace gpucomm
