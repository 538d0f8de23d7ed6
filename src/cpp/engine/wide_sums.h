// Sums of 16-bit floats over several coded messages: added up in float32, rounded once.
#pragma once
#include <vector>

#include "engine/call.h"

namespace gpucomm {

// A row: steps of one lane that decode onto the same target, one behind the other, of which nobody reads
// anything before the last.
enum class InRow : uint8_t { no, first, middle, last };
std::vector<InRow> rows_of(const Plan& plan);  // by step

// Whether a call adds up rows in float32: of what codes the bits of a dtype nothing is known in another one.
inline bool adds_wide(const Shape& shape) {
  const bool half = shape.dtype == Dtype::float16 || shape.dtype == Dtype::bfloat16;
  return half && shape.codec && shape.codec->traits().lossy;
}

// Elements of the longest row, 0 without any: one row is under way at a time.
size_t wide_elements(const Plan& plan, const Layout& layout);

}  // namespace gpucomm
