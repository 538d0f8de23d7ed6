// Integers of one step for all elements.
#pragma once
#include "codecs/blocks/portable.h"

namespace gpucomm::blocks {

// To the nearest integer, ties to even, of any magnitude: from 2^23 on every float is one.
GPUCOMM_BLOCK float nearest_of_any(float value) {
  constexpr uint32_t kTwo23 = 0x4b000000;
  const uint32_t sign = bits_of(value) & ~kMagnitudeBits;
  const float two23 = float_of(sign | kTwo23);
  const float rounded = (value + two23) - two23;
  const bool small = (bits_of(value) & kMagnitudeBits) < kTwo23;
  return float_of(choose(small, bits_of(rounded), bits_of(value)));
}

}  // namespace gpucomm::blocks
