// The arithmetic of zfp for blocks of 4 float32 in one dimension: scaling to integers of 30 bits, the lifting
// transform, negabinary, and bit planes: bit 4k + i of 128 is bit k of coefficient i.
// Source: Lindstrom 2014, "Fixed-Rate Compressed Floating-Point Arrays"; the format of zfp 1.0.
// Differs: blocks below 2^-98, which zfp 1.0 scales by infinity, are coded as the format means them; where
// decoding would overflow, it gives the largest float32.
#pragma once
#include "codecs/blocks/portable.h"

namespace gpucomm::blocks::zfp {

struct Planes {
  uint64_t high, low;  // planes 31 to 16 and 15 to 0
};

GPUCOMM_BLOCK uint32_t half_of(uint32_t value) {
  return static_cast<uint32_t>(static_cast<int32_t>(value) >> 1);
}

// Bits 0 to 15 to bits 0, 4, ..., 60; and back.
GPUCOMM_BLOCK uint64_t spread(uint64_t x) {
  x = (x | x << 24) & 0x000000ff000000ff;
  x = (x | x << 12) & 0x000f000f000f000f;
  x = (x | x << 6) & 0x0303030303030303;
  return (x | x << 3) & 0x1111111111111111;
}
GPUCOMM_BLOCK uint32_t gather(uint64_t x) {
  x &= 0x1111111111111111;
  x = (x | x >> 3) & 0x0303030303030303;
  x = (x | x >> 6) & 0x000f000f000f000f;
  x = (x | x >> 12) & 0x000000ff000000ff;
  return static_cast<uint32_t>((x | x >> 24) & 0xffff);
}

// Two factors whose product is 2^exponent, each far from the ends of float32.
struct Factors {
  float first, second;
};
GPUCOMM_BLOCK Factors factors(int exponent) {
  const int first = exponent >> 1;
  return {power_of_two(first), power_of_two(exponent - first)};
}

// In negabinary. max_bits: of the block's largest magnitude, which is finite and below 2^(field - 126).
GPUCOMM_BLOCK void coefficients(const float (&x)[4], uint32_t max_bits, uint32_t (&q)[4]) {
  const Factors scale = factors(30 + 126 - static_cast<int>(max_bits >> 23));
  for (int i = 0; i < 4; ++i)
    q[i] = static_cast<uint32_t>(static_cast<int32_t>(x[i] * scale.first * scale.second));
  q[0] += q[3], q[0] = half_of(q[0]), q[3] -= q[0];
  q[2] += q[1], q[2] = half_of(q[2]), q[1] -= q[2];
  q[0] += q[2], q[0] = half_of(q[0]), q[2] -= q[0];
  q[3] += q[1], q[3] = half_of(q[3]), q[1] -= q[3];
  q[3] += half_of(q[1]), q[1] -= half_of(q[3]);
  for (int i = 0; i < 4; ++i) q[i] = (q[i] + 0xaaaaaaaa) ^ 0xaaaaaaaa;
}

GPUCOMM_BLOCK Planes encode(const float (&x)[4], uint32_t max_bits) {
  uint32_t q[4];
  coefficients(x, max_bits, q);
  Planes planes = {0, 0};
  for (int i = 0; i < 4; ++i) {
    planes.high |= spread(q[i] >> 16) << i;
    planes.low |= spread(q[i] & 0xffff) << i;
  }
  return planes;
}

// From negabinary coefficients to integers.
GPUCOMM_BLOCK void integers(uint32_t (&q)[4]) {
  for (int i = 0; i < 4; ++i) q[i] = (q[i] ^ 0xaaaaaaaa) - 0xaaaaaaaa;
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

GPUCOMM_BLOCK void decode(Planes planes, uint32_t field, float (&x)[4]) {
  uint32_t q[4];
  for (int i = 0; i < 4; ++i) q[i] = gather(planes.high >> i) << 16 | gather(planes.low >> i);
  integers(q);
  values(q, field, x);
}

}  // namespace gpucomm::blocks::zfp
