// A block as small integers and one step: x is about q x step, -levels <= q <= levels.
//
// The step is bfloat16, rounded up so that the largest magnitude still fits: q x step is then exact in
// float32, and the error at most half a step. Steps start at 2^-126, so that their inverse is finite, and end
// where levels x step would overflow.
#pragma once
#include "codecs/blocks/portable.h"

namespace gpucomm::blocks {

template <int kLevels>
struct Uniform {
  static constexpr uint32_t kLeastStep = 0x0080;  // 2^-126
  static constexpr uint32_t kMostStep = __builtin_bit_cast(uint32_t, 0x1.fffffep127f / kLevels) >> 16;

  // The step's bfloat16 bits, for the largest magnitude of a block, which is finite.
  static GPUCOMM_BLOCK uint16_t step_for(float max_abs) {
    const uint32_t up = (bits_of(max_abs / kLevels) + 0xffff) >> 16;
    const uint32_t least = up < kLeastStep ? kLeastStep : up;
    return static_cast<uint16_t>(least > kMostStep ? kMostStep : least);
  }
  static GPUCOMM_BLOCK bool valid(uint16_t step) { return step >= kLeastStep && step <= kMostStep; }
  static GPUCOMM_BLOCK float value_of(uint16_t step) { return float_of(static_cast<uint32_t>(step) << 16); }

  static GPUCOMM_BLOCK int32_t quantise(float x, float inverse_step) { return nearest(x * inverse_step); }
  static GPUCOMM_BLOCK float restore(int32_t q, float step) { return static_cast<float>(q) * step; }
};

}  // namespace gpucomm::blocks
