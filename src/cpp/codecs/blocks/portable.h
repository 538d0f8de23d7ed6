// What the block math needs to be one text for host and CUDA: inline always, so that it is compiled for the
// target of the loop around it; no library, no exceptions; bits only by exact or correctly rounded
// operations.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define GPUCOMM_BLOCK __host__ __device__ __forceinline__
#else
#define GPUCOMM_BLOCK inline __attribute__((always_inline))
#endif

namespace gpucomm::blocks {

GPUCOMM_BLOCK uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

GPUCOMM_BLOCK float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline constexpr uint32_t kInfinityBits = 0x7f800000, kMagnitudeBits = 0x7fffffff;

// condition ? yes : no, without the jump into which GCC would move the arithmetic of one side (it may trap).
GPUCOMM_BLOCK uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// Of the largest magnitude of a block; NaN is above Inf, Inf above all numbers. Signed inside: SSE2 has no
// other.
GPUCOMM_BLOCK uint32_t largest_bits(const float* in, unsigned long count) {
  int32_t most = 0;
  for (unsigned long i = 0; i < count; ++i) {
    const auto bits = static_cast<int32_t>(bits_of(in[i]) & kMagnitudeBits);
    most = bits > most ? bits : most;
  }
  return static_cast<uint32_t>(most);
}

// 2^exponent; -126 <= exponent <= 127.
GPUCOMM_BLOCK float power_of_two(int exponent) {
  return float_of(static_cast<uint32_t>(exponent + 127) << 23);
}

// To the nearest integer, ties to even, for |value| <= 2^21: the sum has its last bit at 1.
GPUCOMM_BLOCK int32_t nearest(float value) {
  constexpr float kMagic = 12582912.0f;  // 1.5 x 2^23
  return static_cast<int32_t>(bits_of(value + kMagic) - 0x4b400000u);
}

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
