#include "codecs/norms.h"

#include <algorithm>
#include <cmath>

#include "codecs/blocks/portable.h"
#include "codecs/floats.h"
#include "codecs/levels.h"

namespace gpucomm {
namespace {

constexpr size_t kRun = 1024;  // the largest block
constexpr size_t kSums = 8;    // side by side: the same at every SIMD level

double larger(double a, double b) { return a > b || a != a ? a : b; }  // NaN where one is

double square_of(int32_t magnitude) {
  const double value = blocks::float_of(static_cast<uint32_t>(magnitude));
  return value * value;
}

// Of a run's magnitudes, as integers, whose order is theirs; zeros fill it up.
void magnitudes_kernel(const float* values, size_t count, int32_t* magnitudes) {
  for (size_t i = 0; i < count; ++i)
    magnitudes[i] = static_cast<int32_t>(blocks::bits_of(values[i]) & blocks::kMagnitudeBits);
  for (size_t i = count; i < kRun; ++i) magnitudes[i] = 0;
}

double squares_kernel(const int32_t* magnitudes, size_t count) {
  double sums[kSums] = {};
  for (size_t i = 0; i < count / kSums * kSums; i += kSums)
    for (size_t k = 0; k < kSums; ++k) sums[k] += square_of(magnitudes[i + k]);
  double sum = 0;
  for (double some : sums) sum += some;
  for (size_t i = count / kSums * kSums; i < count; ++i) sum += square_of(magnitudes[i]);
  return sum;
}

void halve_kernel(int32_t* most, size_t count) {
  for (size_t i = 0; i < count; ++i) most[i] = std::max(most[2 * i], most[2 * i + 1]);
}

// The last block of each size may be cut short.
void add_blocks(int32_t* most, size_t count, unsigned blocks, NormSums& sums) {
  for (unsigned size = 0; size < kBlockSizes; ++size) {
    if (size) Leveled<halve_kernel>::run(most, kRun >> size);
    if (size && !(blocks >> size & 1)) continue;
    const size_t whole = count >> size, rest = count - (whole << size);
    sums.squares[size] += static_cast<double>(1 << size) * Leveled<squares_kernel>::run(most, whole);
    if (rest) sums.squares[size] += static_cast<double>(rest) * square_of(most[whole]);
  }
  sums.largest = larger(sums.largest, blocks::float_of(static_cast<uint32_t>(most[0])));
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
  int32_t magnitudes[kRun];
  const size_t item = size_of(of.dtype);
  for (size_t begin = 0; begin < of.count; begin += kRun) {
    const size_t n = std::min(kRun, of.count - begin);
    widen(of.dtype, of.x + begin * item, n, values);
    if (of.became) {
      widen(of.dtype, of.became + begin * item, n, became);
      add_lost(values, became, n, of.times, sums);
      continue;
    }
    Leveled<magnitudes_kernel>::run(values, n, magnitudes);
    add_blocks(magnitudes, n, of.blocks, sums);
  }
}

NormSums total_of(const std::vector<NormSums>& parts) {
  NormSums total;
  for (const NormSums& part : parts) {
    for (unsigned size = 0; size < kBlockSizes; ++size) total.squares[size] += part.squares[size];
    total.largest = larger(total.largest, part.largest);
  }
  return total;
}

}  // namespace gpucomm
