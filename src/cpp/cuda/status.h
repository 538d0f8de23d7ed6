// What went wrong, in one word; the greater wins, so that the outcome is the same in any order of threads: an
// element before a damaged message, which may follow from it, and the least index before others.
// Bits 62 and 63 say what; then, of an element or a place, 46 bits of index, inverted, and 16 of the value.
#pragma once
#include "cuda/program.h"

namespace gpucomm::cuda {

using Status = unsigned long long;

enum class Fault : unsigned { none, size, place, element };
inline constexpr Status kLargestIndex = (Status{1} << 46) - 1;

GPUCOMM_PROGRAM Status fault_at(Fault fault, size_t index, uint32_t value_bits = 0) {
  return static_cast<Status>(fault) << 62 | (kLargestIndex - index) << 16 | value_bits >> 16;
}
// An element that the codec cannot carry. A NaN's payload may lie in the lower half of its bits.
GPUCOMM_PROGRAM Status element_fault(size_t index, float value) {
  return fault_at(Fault::element, index, value == value ? blocks::bits_of(value) : 0x7fc00000);
}
GPUCOMM_PROGRAM Status place_fault(size_t index) { return fault_at(Fault::place, index); }
GPUCOMM_PROGRAM Status size_fault(uint64_t bytes) {
  constexpr Status kMost = (Status{1} << 62) - 1;
  return static_cast<Status>(Fault::size) << 62 | (bytes < kMost ? bytes : kMost);
}

}  // namespace gpucomm::cuda
