// Multiplication of host memory by a factor: what premul_sum does before it sums.
#pragma once
#include <cstddef>

#include "base/dtype.h"

namespace gpucomm {

// destination[i] = source[i] * factor, i < count, of a float dtype; the two may be the same. The factor is
// rounded to the type that is multiplied in: float32 for float32 and the halves, which are rounded once
// afterwards. A NaN is the canonical one, as reduce() has it.
void scale(Dtype dtype, void* destination, const void* source, size_t count, double factor);

}  // namespace gpucomm
