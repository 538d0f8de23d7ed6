// Eight-bit floats of a block that was scaled by a power of two. The scaling is exact, so an element keeps
// its relative precision.
//
// Source: Micikevicius et al. 2022, arXiv:2209.05433 (the two formats); OCP Microscaling 1.0 (scales of 8
// bits).
#pragma once
#include "codecs/blocks/portable.h"

namespace gpucomm::blocks {

// kTop: the exponent of the largest number, which is 1.75 x 2^kTop in both formats.
template <int kMantissa, int kBias, int kTop, bool kHasInfinity>
struct SmallFloat {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = (127 - kBias) << 23;
  static constexpr uint32_t kOne = 1 << 23;
  static constexpr uint32_t kNan = kHasInfinity ? 0x7e : 0x7f, kInfinity = 0x7c;
  static constexpr int kLeastScale = -126, kMostScale = 127 - kTop + 1;
  static constexpr uint32_t kLargest = static_cast<uint32_t>(127 + kTop) << 23 | 0x600000;
  // The number below 2^kTop: the largest that can be scaled by 2^kMostScale without overflow.
  static constexpr uint32_t kLargestAtMost = (static_cast<uint32_t>(127 + kTop) << 23) - (1u << kShift);

  // The least exponent s for which the block's largest finite magnitude, given as bits, is within 1.75 x
  // 2^(kTop+s).
  static GPUCOMM_BLOCK int scale_for(uint32_t max_bits) {
    const int scale = static_cast<int>(max_bits >> 23) - 127 - kTop + ((max_bits & 0x7fffff) > 0x600000);
    return scale < kLeastScale ? kLeastScale : scale;
  }
  static GPUCOMM_BLOCK bool valid(int scale) { return scale >= kLeastScale && scale <= kMostScale; }
  // Bits of the largest magnitude that the encoded may have.
  static GPUCOMM_BLOCK uint32_t limit_for(int scale) {
    return scale == kMostScale ? kLargestAtMost : kLargest;
  }

  // To nearest, ties to even, of |scaled| <= 1.75 x 2^kTop: the code, a byte. The sum with an aligner of the
  // element's exponent has its last bit where the code has it; below the least normal number that exponent
  // stands still. Without a maximum, of which GCC makes slower comparisons.
  static GPUCOMM_BLOCK int32_t encode(float scaled) {
    constexpr int32_t kLeastNormal = (127 + 1 - kBias) << 23, kAligner = kLeastNormal + (kShift << 23);
    const auto bits = static_cast<int32_t>(bits_of(scaled));
    const int32_t above = (bits & static_cast<int32_t>(kInfinityBits)) - kLeastNormal;
    const int32_t exponent = above & ~(above >> 31);
    const float magnitude = float_of(bits & static_cast<int32_t>(kMagnitudeBits));
    const auto sum = static_cast<int32_t>(bits_of(magnitude + float_of(exponent + kAligner)));
    return (sum - (exponent - (exponent >> kShift)) - kAligner) | (bits >> 24 & 0x80);
  }

  // Of any element: beyond `limit` it becomes the limit, and NaN and Inf their codes.
  static GPUCOMM_BLOCK uint8_t encode_any(float scaled, uint32_t limit) {
    const uint32_t bits = bits_of(scaled), magnitude = bits & kMagnitudeBits, sign = bits & ~kMagnitudeBits;
    uint32_t code = static_cast<uint32_t>(encode(float_of(sign | (magnitude < limit ? magnitude : limit))));
    if (kHasInfinity && magnitude == kInfinityBits) code = kInfinity | sign >> 24;
    return static_cast<uint8_t>(magnitude > kInfinityBits ? kNan : code);
  }

  static GPUCOMM_BLOCK float decode(uint8_t code, float scale) {
    constexpr float kLeastNormal = __builtin_bit_cast(float, static_cast<uint32_t>(127 + 1 - kBias) << 23);
    const uint32_t magnitude = static_cast<uint32_t>(code & 0x7f) << kShift;
    const uint32_t normal = magnitude + kRebias;
    const uint32_t denormal = bits_of(float_of(normal + kOne) - kLeastNormal);
    const uint32_t value = bits_of(float_of(choose(magnitude < kOne, denormal, normal)) * scale);
    const uint32_t low = code & 0x7f;
    uint32_t bits = choose(kHasInfinity && low == kInfinity, kInfinityBits, value);
    bits |= static_cast<uint32_t>(code & 0x80) << 24;
    return float_of(choose(kHasInfinity ? low > kInfinity : low == kNan, 0x7fc00000, bits));
  }
};

using E4m3 = SmallFloat<3, 7, 8, false>;
using E5m2 = SmallFloat<2, 15, 15, true>;

}  // namespace gpucomm::blocks
