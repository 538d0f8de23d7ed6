// float16 and bfloat16 to float32 and back, by integer arithmetic and selects only: no branch and no table,
// so that loops over them vectorise. Exact one way; to nearest, ties to even, the other way. Denormals are
// exact; every NaN becomes the canonical one. CUDA devices convert by themselves what they can, to the same
// bits.
#pragma once
#include <cstdint>

#include "base/both.h"

namespace gpucomm {

inline constexpr uint16_t kFloat16Nan = 0x7e00;
inline constexpr uint16_t kBfloat16Nan = 0x7fc0;

// condition ? yes : no, without the jump into which GCC would move the arithmetic of one side (it may trap).
GPUCOMM_BOTH inline uint32_t choose_bits(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

GPUCOMM_BOTH inline float bfloat16_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

GPUCOMM_BOTH inline uint16_t float_to_bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint16_t rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
#else
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
  return static_cast<uint16_t>(value != value ? kBfloat16Nan : rounded);
}

GPUCOMM_BOTH inline float float16_to_float(uint16_t half) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  constexpr uint32_t kRebias = (127 - 15) << 23;
  constexpr float kDenormal = 0x1p-14f;  // what an exponent field of 1 stands for
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  const uint32_t normal = magnitude + kRebias;
  // A denormal has no hidden one: put one there, then subtract it as a number. No float32 denormal is met, so
  // a thread that flushes those gets the same bits.
  const float denormal = __builtin_bit_cast(float, normal + (1u << 23)) - kDenormal;
  uint32_t bits = choose_bits(magnitude < (1u << 23), __builtin_bit_cast(uint32_t, denormal), normal);
  bits = choose_bits(magnitude >= (31u << 23), normal + kRebias, bits);
  return __builtin_bit_cast(float, bits | static_cast<uint32_t>(half & 0x8000) << 16);
#endif
}

GPUCOMM_BOTH inline uint16_t float_to_float16(float value) {
#ifdef __CUDA_ARCH__
  uint16_t rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
  return value != value ? kFloat16Nan : rounded;
#else
  constexpr uint32_t kInfinity = 0x7c00;
  constexpr uint32_t kTooLarge = (127 + 16) << 23;  // 65536; from 65520 up to it, rounding gives infinity
  constexpr uint32_t kLeastNormal = (127 - 14) << 23;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  constexpr float kAligner = 0.5f;  // its last bit is worth 2^-24, the least float16: adding it rounds there
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const float aligned = __builtin_bit_cast(float, magnitude) + kAligner;
  const uint32_t denormal = __builtin_bit_cast(uint32_t, aligned) - __builtin_bit_cast(uint32_t, kAligner);
  const uint32_t normal = (magnitude - kRebias + 0xfff + (magnitude >> 13 & 1)) >> 13;
  uint32_t half = choose_bits(magnitude < kLeastNormal, denormal, normal);
  half = choose_bits(magnitude >= kTooLarge, kInfinity, half);
  half |= bits >> 16 & 0x8000;
  return static_cast<uint16_t>(choose_bits(value != value, kFloat16Nan, half));
#endif
}

}  // namespace gpucomm
