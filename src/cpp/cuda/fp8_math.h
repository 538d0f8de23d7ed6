// Four elements to a word of 8-bit floats and back. GPUs from compute capability 8.9 on have an instruction
// for what codecs/blocks/small_float.h does by integers, with the same outcome but for the bits of NaN.
#pragma once
#include "codecs/blocks/small_float.h"
#include "cuda/program.h"

namespace gpucomm::cuda {

template <class Code>
GPUCOMM_PROGRAM uint32_t packed(const Four& x, const Code& code) {
  uint32_t codes = 0;
  for (unsigned i = 0; i < kPerLane; ++i) codes |= static_cast<uint32_t>(code(x.at[i])) << (8 * i);
  return codes;
}

// CUDA 12.0 knows it for 9.0 only.
#if defined(__CUDA_ARCH__) && \
    __CUDA_ARCH__ >= (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ == 0 ? 900 : 890)

GPUCOMM_PROGRAM uint32_t pair_to_fp8(blocks::E4m3, float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
GPUCOMM_PROGRAM uint32_t pair_to_fp8(blocks::E5m2, float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
GPUCOMM_PROGRAM uint32_t pair_to_halves(blocks::E4m3, uint32_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  return halves;
}
GPUCOMM_PROGRAM uint32_t pair_to_halves(blocks::E5m2, uint32_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  return halves;
}

// Finite elements, which are within the format's range once they are multiplied.
template <class Format>
GPUCOMM_PROGRAM uint32_t to_fp8(const Four& x, float inverse) {
  const uint32_t low = pair_to_fp8(Format(), x.at[0] * inverse, x.at[1] * inverse);
  return low | pair_to_fp8(Format(), x.at[2] * inverse, x.at[3] * inverse) << 16;
}

template <class Format>
GPUCOMM_PROGRAM void from_fp8(uint32_t codes, float factor, Four& x) {
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const uint32_t halves = pair_to_halves(Format(), codes >> (16 * pair));
    float* const at = x.at + 2 * pair;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(at[0]), "=f"(at[1])
        : "r"(halves));
  }
#pragma unroll
  for (float& value : x.at) value = value != value ? blocks::float_of(0x7fc00000) : value * factor;
}

#else

template <class Format>
GPUCOMM_PROGRAM uint32_t to_fp8(const Four& x, float inverse) {
  return packed(x, [&](float value) { return Format::encode(value * inverse); });
}

template <class Format>
GPUCOMM_PROGRAM void from_fp8(uint32_t codes, float factor, Four& x) {
  for (unsigned i = 0; i < kPerLane; ++i)
    x.at[i] = Format::decode(static_cast<uint8_t>(codes >> (8 * i)), factor);
}

#endif

}  // namespace gpucomm::cuda
