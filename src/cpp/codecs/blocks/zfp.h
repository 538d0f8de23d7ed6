// The arithmetic of zfp for blocks of 4 float32 in one dimension: scaling to integers of 30 bits, the lifting
// transform, negabinary, and bit planes, eight at a time.
// Source: Lindstrom 2014, "Fixed-Rate Compressed Floating-Point Arrays"; the format of zfp 1.0.
// Differs: blocks below 2^-98, which zfp 1.0 scales by infinity, are coded as the format means them; where
// decoding would overflow, it gives the largest float32.
#pragma once
#include "codecs/blocks/portable.h"

namespace gpucomm::blocks::zfp {

GPUCOMM_BLOCK uint32_t half_of(uint32_t value) {
  return static_cast<uint32_t>(static_cast<int32_t>(value) >> 1);
}

// Exchanges two bits of the numbers of bits: what was at place ..1..0.. is at ..0..1.. and the other way
// round.
template <unsigned kHigh, unsigned kLow>
GPUCOMM_BLOCK uint32_t exchange_places(uint32_t bits) {
  constexpr unsigned kBy = (1u << kHigh) - (1u << kLow);
  constexpr uint32_t kMask = [] {
    uint32_t mask = 0;
    for (uint32_t place = 0; place < 32; ++place)
      if (place >> kLow & 1 && !(place >> kHigh & 1)) mask |= 1u << place;
    return mask;
  }();
  const uint32_t differ = (bits ^ bits >> kBy) & kMask;
  return bits ^ differ ^ differ << kBy;
}

// From eight planes, bit 4 p + i of which is that of coefficient i, to bits 8 i + p; and back.
GPUCOMM_BLOCK uint32_t bytes_of_planes(uint32_t planes) {
  return exchange_places<1, 0>(exchange_places<2, 1>(exchange_places<3, 0>(exchange_places<4, 1>(planes))));
}
GPUCOMM_BLOCK uint32_t planes_of_bytes(uint32_t bytes) {
  return exchange_places<4, 1>(exchange_places<3, 0>(exchange_places<2, 1>(exchange_places<1, 0>(bytes))));
}
// The upper eight planes of the coefficients, the uppermost on top.
GPUCOMM_BLOCK uint32_t upper_planes(const uint32_t (&q)[4]) {
  return planes_of_bytes(q[0] >> 24 | q[1] >> 24 << 8 | q[2] >> 24 << 16 | (q[3] & 0xff000000));
}

// Two factors whose product is 2^exponent, each far from the ends of float32.
struct Factors {
  float first, second;
};
GPUCOMM_BLOCK Factors factors(int exponent) {
  const int first = exponent >> 1;
  return {power_of_two(first), power_of_two(exponent - first)};
}

// To zero. GPUs, which code some blocks before they look at them, have an integer for every float.
GPUCOMM_BLOCK int32_t truncated(float value) {
#ifdef __CUDA_ARCH__
  return __float2int_rz(value);
#else
  return static_cast<int32_t>(value);
#endif
}

// Integers of 30 bits. max_bits: of the block's largest magnitude, which is finite. kPlain: it is at least
// kLeastPlain, so that one factor will do; below that, it is some number.
inline constexpr uint32_t kLeastPlain = 29u << 23;
template <bool kPlain>
GPUCOMM_BLOCK void scaled(const float (&x)[4], uint32_t max_bits, uint32_t (&q)[4]) {
  const int exponent = 30 + 126 - static_cast<int>(max_bits >> 23);
  const Factors scale = kPlain ? Factors{power_of_two(exponent), 1} : factors(exponent);
  for (int i = 0; i < 4; ++i) q[i] = static_cast<uint32_t>(truncated(x[i] * scale.first * scale.second));
}

GPUCOMM_BLOCK void transform(uint32_t (&q)[4]) {
  q[0] += q[3], q[0] = half_of(q[0]), q[3] -= q[0];
  q[2] += q[1], q[2] = half_of(q[2]), q[1] -= q[2];
  q[0] += q[2], q[0] = half_of(q[0]), q[2] -= q[0];
  q[3] += q[1], q[3] = half_of(q[3]), q[1] -= q[3];
  q[3] += half_of(q[1]), q[1] -= half_of(q[3]);
}

// Of which a number's sum, exclusive or this again, is the number in negabinary.
inline constexpr uint32_t kNegabinary = 0xaaaaaaaa;
GPUCOMM_BLOCK void coefficients(const float (&x)[4], uint32_t max_bits, uint32_t (&q)[4]) {
  scaled<false>(x, max_bits, q);
  transform(q);
  for (int i = 0; i < 4; ++i) q[i] = (q[i] + kNegabinary) ^ kNegabinary;
}

// From negabinary coefficients to integers.
GPUCOMM_BLOCK void integers(uint32_t (&q)[4]) {
  for (int i = 0; i < 4; ++i) q[i] = (q[i] ^ kNegabinary) - kNegabinary;
  q[1] += half_of(q[3]), q[3] -= half_of(q[1]);
  q[1] += q[3], q[3] <<= 1, q[3] -= q[1];
  q[2] += q[0], q[0] <<= 1, q[0] -= q[2];
  q[1] += q[2], q[2] <<= 1, q[2] -= q[1];
  q[3] += q[0], q[0] <<= 1, q[0] -= q[3];
}

// field: the block's coded exponent, 0 to 255.
GPUCOMM_BLOCK int exponent_of(uint32_t field) { return static_cast<int>(field) - 127 - 30; }

GPUCOMM_BLOCK void values(const uint32_t (&q)[4], uint32_t field, float (&x)[4]) {
  const Factors scale = factors(exponent_of(field));
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits =
        bits_of(static_cast<float>(static_cast<int32_t>(q[i])) * scale.first * scale.second);
    const uint32_t magnitude = bits & kMagnitudeBits;
    x[i] = float_of((bits & ~kMagnitudeBits) | (magnitude < kInfinityBits ? magnitude : kInfinityBits - 1));
  }
}

// The same, sooner, where one factor will do: it is a normal float32, and what it makes of 2^31 is one too.
GPUCOMM_BLOCK bool is_plain(uint32_t field) { return field - 31 <= 253 - 31; }
GPUCOMM_BLOCK void plain_values(const uint32_t (&q)[4], uint32_t field, float (&x)[4]) {
  const float scale = power_of_two(exponent_of(field));
  for (int i = 0; i < 4; ++i) x[i] = static_cast<float>(static_cast<int32_t>(q[i])) * scale;
}

}  // namespace gpucomm::blocks::zfp
