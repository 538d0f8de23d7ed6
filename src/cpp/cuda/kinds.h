// The kinds of dense elements, and two floats to a word of halves and back, the first one lowest. GPUs have
// instructions for what base/half.h does by integers, with the same outcome but for the bits of NaN.
#pragma once
#include "base/dtype.h"
#include "base/half.h"
#include "cuda/program.h"

namespace gpucomm::cuda {

enum class Kind : uint32_t { float32, float16, bfloat16 };

inline Kind kind_of(Dtype dtype) {
  if (dtype == Dtype::float16) return Kind::float16;
  return dtype == Dtype::bfloat16 ? Kind::bfloat16 : Kind::float32;
}

// Calls call<kind>().
template <class Call>
void with_kind(Dtype dtype, const Call& call) {
  if (dtype == Dtype::float16) return call.template operator()<Kind::float16>();
  if (dtype == Dtype::bfloat16) return call.template operator()<Kind::bfloat16>();
  call.template operator()<Kind::float32>();
}

GPUCOMM_BOTH inline size_t size_of(Kind kind) { return kind == Kind::float32 ? 4 : 2; }

GPUCOMM_PROGRAM float widen_half(Kind kind, uint32_t half) {
  const auto bits = static_cast<uint16_t>(half);
  return kind == Kind::float16 ? float16_to_float(bits) : bfloat16_to_float(bits);
}

// Ones in place of each half that is NaN.
GPUCOMM_BOTH inline uint32_t nan_mask(Kind kind, uint32_t halves) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t mask;
  if (kind == Kind::float16)
    asm("set.nan.u32.f16x2 %0, %1, %1;" : "=r"(mask) : "r"(halves));
  else
    asm("set.nan.u32.bf16x2 %0, %1, %1;" : "=r"(mask) : "r"(halves));
  return mask;
#else
  const uint32_t infinity = kind == Kind::float16 ? 0x7c00 : 0x7f80;
  return ((halves & 0x7fff) > infinity ? 0xffff : 0) | ((halves >> 16 & 0x7fff) > infinity ? 0xffff0000 : 0);
#endif
}

GPUCOMM_BOTH inline uint32_t canonical_two(Kind kind, uint32_t halves) {
  const uint32_t nan = (kind == Kind::float16 ? kFloat16Nan : kBfloat16Nan) * 0x10001u;
  const uint32_t mask = nan_mask(kind, halves);
  return (nan & mask) | (halves & ~mask);
}

// To nearest, ties to even; beyond the largest number, to Inf. NaN of any bits.
GPUCOMM_PROGRAM uint32_t narrow_two_any(Kind kind, float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t halves;
  if (kind == Kind::float16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
  return halves;
#else
  if (kind == Kind::float16) return float_to_float16(low) | float_to_float16(high) << 16;
  return float_to_bfloat16(low) | float_to_bfloat16(high) << 16;
#endif
}

}  // namespace gpucomm::cuda
