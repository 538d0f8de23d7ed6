// Reductions on host memory: k sources folded in their order, in one pass, at the best SIMD level.
#pragma once
#include <cstddef>

#include "base/dtype.h"

namespace gpucomm {

// destination[i] = sources[0][i] op sources[1][i] op ... (a left fold), i < count.
//
// float16 and bfloat16 are folded in float32 and rounded once (to nearest, ties to even). sum and prod of
// integers wrap; bool: sum, max and bor are "or", prod, min and band are "and". Bitwise operations are not
// defined for floats. premul_sum is a sum: who contributes has multiplied before. min and max return NaN
// where any source is NaN and order -0 below +0. A NaN result of any op is the canonical quiet NaN (positive,
// payload zero), so that equal inputs give equal bits at every SIMD level and operand order. divisor > 1
// divides the folded value (mean): floats exactly (in float32 before the rounding for the halves), integers
// truncating towards zero. `destination` may be one of the sources; sources need no alignment beyond their
// element's. At least one source. `twin`: a second destination, of the same result; it may be a source too.
void reduce(Dtype dtype, Op op, void* destination, const void* const* sources, int source_count, size_t count,
            int divisor, void* twin = nullptr);

}  // namespace gpucomm
