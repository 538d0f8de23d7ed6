// float32 and the 16-bit floats: runs of them widened, narrowed and added, at the best SIMD level. Elements
// in bytes need no alignment. NaNs come out canonical, but where float32 is only copied.
#pragma once
#include <cstddef>

#include "base/dtype.h"

namespace gpucomm {

inline bool is_float_up_to_32(Dtype dtype) {
  return dtype == Dtype::float32 || dtype == Dtype::float16 || dtype == Dtype::bfloat16;
}

void widen(Dtype dtype, const std::byte* in, size_t count, float* out);
// Rounds to nearest, ties to even; beyond the largest number, to Inf.
void narrow(Dtype dtype, const float* in, size_t count, std::byte* out);
// Each rounded once.
void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count);
// Makes finite values beyond the largest number of the dtype that number, where they are beyond by up to
// `stray`.
void saturate(Dtype dtype, float* values, size_t count, float stray);
// accumulator[i] += values[i], in float32, rounded once.
void add_floats(Dtype dtype, const float* values, size_t count, std::byte* accumulator);
// values[i] = times x (from[i] - values[i]): 0 where that is no finite number, at most the dtype's largest.
void subtract_floats(Dtype dtype, const float* from, float* values, int times, size_t count);

// The largest magnitude; NaN where one is.
double max_abs(Dtype dtype, const std::byte* in, size_t count);

// Of one rounding to the dtype, for magnitudes up to `max_abs`.
double rounding(Dtype dtype, double max_abs);
double largest(Dtype dtype);

}  // namespace gpucomm
