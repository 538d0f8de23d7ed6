// Norms of arrays, and of what encodings lose of them, as sums of squares in float64: what bounds of errors
// are made of (max_rel_err).
#pragma once
#include <cstddef>
#include <vector>

#include "base/dtype.h"

namespace gpucomm {

inline constexpr unsigned kBlockSizes = 11;  // the powers of two from 1 to 1024

struct NormSums {
  // [i]: of an array that holds at every element the largest magnitude of its block of 2^i elements.
  double squares[kBlockSizes] = {};
  double largest = 0;  // magnitude
};

// float32, float16 or bfloat16.
struct Squared {
  Dtype dtype = Dtype::float32;
  const std::byte* x = nullptr;
  size_t count = 0;
  unsigned blocks = 1;  // the sizes wanted, each a bit; 1 always is
  // Where given, what x lost is squared instead: times (became - x), 0 where x is not finite. Blocks of 1.
  const std::byte* became = nullptr;
  int times = 1;
};

// In one order of sums; in another the outcome differs by rounding, each sum relatively by at most
// (count + 2) 2^-53: all terms are positive. NaN where an element is.
void add_squares(const Squared& of, NormSums& sums);
NormSums total_of(const std::vector<NormSums>& parts);

}  // namespace gpucomm
