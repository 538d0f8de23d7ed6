#include "codecs/floats.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/copy.h"
#include "base/half.h"
#include "codecs/blocks/portable.h"
#include "codecs/levels.h"
#include "codecs/unaligned.h"

#ifdef GPUCOMM_X86_LEVELS
#include <immintrin.h>
#endif

namespace gpucomm {
namespace {

using blocks::bits_of;
using blocks::float_of;

constexpr uint32_t kNanBits = 0x7fc00000;  // the canonical NaN of float32

using Half = Unaligned<uint16_t>;
using Single = Unaligned<float>;

float canonical(float value) { return float_of(choose_bits(value != value, kNanBits, bits_of(value))); }

template <float (*load)(uint16_t)>
void widen_kernel(const Half* in, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = canonical(load(in[i].value));
}

template <uint16_t (*store)(float)>
void narrow_kernel(const float* in, size_t count, Half* out) {
  for (size_t i = 0; i < count; ++i) out[i].value = store(in[i]);
}

void add_kernel(const float* values, size_t count, Single* accumulator) {
  for (size_t i = 0; i < count; ++i) accumulator[i].value = canonical(accumulator[i].value + values[i]);
}

void subtract_kernel(const float* from, float* values, float times, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(times * (from[i] - values[i]));
    const bool finite = (bits & blocks::kMagnitudeBits) < blocks::kInfinityBits;
    values[i] = float_of(choose_bits(finite, bits, 0));
  }
}

int32_t magnitude_kernel(const float* values, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; ++i)
    most = std::max(most, static_cast<int32_t>(bits_of(values[i]) & blocks::kMagnitudeBits));
  return most;
}

void saturate_kernel(float* values, size_t count, uint32_t largest, uint32_t most) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(values[i]), magnitude = bits & blocks::kMagnitudeBits;
    const bool beyond = magnitude > largest && magnitude <= most && magnitude < blocks::kInfinityBits;
    values[i] = float_of(choose_bits(beyond, largest | (bits & ~blocks::kMagnitudeBits), bits));
  }
}

// float16 by the processor's conversions, which compilers do not find in a loop. The bits are those of
// half.h.
#ifdef GPUCOMM_X86_LEVELS
[[gnu::target(GPUCOMM_V4)]] void widen_float16_v4(const Half* in, size_t count, float* out) {
  constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of an uninitialised value inside its own unmasked forms
  for (size_t i = 0; i + 16 <= count; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    const __m512 value = _mm512_maskz_cvtph_ps(kAll, halves);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    _mm512_storeu_ps(out + i,
                     _mm512_mask_blend_ps(nan, value, _mm512_castsi512_ps(_mm512_set1_epi32(kNanBits))));
  }
}

[[gnu::target(GPUCOMM_V4)]] void narrow_float16_v4(const float* in, size_t count, Half* out) {
  constexpr __mmask16 kAll = 0xffff;
  for (size_t i = 0; i + 16 <= count; i += 16) {
    const __m512 value = _mm512_loadu_ps(in + i);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m256i halves = _mm512_maskz_cvtps_ph(kAll, value, _MM_FROUND_TO_NEAREST_INT);
    const __m256i result = _mm256_mask_blend_epi16(nan, halves, _mm256_set1_epi16(kFloat16Nan));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), result);
  }
}

[[gnu::target(GPUCOMM_V3)]] inline __m256 canonical_v3(__m256 value) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(kNanBits));
  return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

[[gnu::target(GPUCOMM_V3)]] void widen_float16_v3(const Half* in, size_t count, float* out) {
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, canonical_v3(_mm256_cvtph_ps(halves)));
  }
}

[[gnu::target(GPUCOMM_V3)]] void narrow_float16_v3(const float* in, size_t count, Half* out) {
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const __m256 value = canonical_v3(_mm256_loadu_ps(in + i));
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
  }
}
#endif

// How many elements the processor's conversions do; loops do the rest.
size_t in_vectors([[maybe_unused]] size_t count) {
#ifdef GPUCOMM_X86_LEVELS
  if (simd() == Simd::v4) return count / 16 * 16;
  if (simd() == Simd::v3) return count / 8 * 8;
#endif
  return 0;
}

void widen_float16(const Half* in, size_t count, float* out) {
  const size_t done = in_vectors(count);
#ifdef GPUCOMM_X86_LEVELS
  if (done) (simd() == Simd::v4 ? widen_float16_v4 : widen_float16_v3)(in, done, out);
#endif
  Leveled<widen_kernel<float16_to_float>>::run(in + done, count - done, out + done);
}

void narrow_float16(const float* in, size_t count, Half* out) {
  const size_t done = in_vectors(count);
#ifdef GPUCOMM_X86_LEVELS
  if (done) (simd() == Simd::v4 ? narrow_float16_v4 : narrow_float16_v3)(in, done, out);
#endif
  Leveled<narrow_kernel<float_to_float16>>::run(in + done, count - done, out + done);
}

}  // namespace

void widen(Dtype dtype, const std::byte* in, size_t count, float* out) {
  const auto* halves = reinterpret_cast<const Half*>(in);
  if (dtype == Dtype::float16) return widen_float16(halves, count, out);
  if (dtype == Dtype::bfloat16) return Leveled<widen_kernel<bfloat16_to_float>>::run(halves, count, out);
  copy_bytes(out, in, 4 * count);
}

void narrow(Dtype dtype, const float* in, size_t count, std::byte* out) {
  auto* halves = reinterpret_cast<Half*>(out);
  if (dtype == Dtype::float16) return narrow_float16(in, count, halves);
  if (dtype == Dtype::bfloat16) return Leveled<narrow_kernel<float_to_bfloat16>>::run(in, count, halves);
  copy_bytes(out, in, 4 * count);
}

void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count) {
  constexpr size_t kRun = 512;
  float wide[kRun];
  for (size_t begin = 0; begin < count; begin += kRun) {
    const size_t some = std::min(kRun, count - begin);
    widen(from, in + begin * size_of(from), some, wide);
    narrow(to, wide, some, out + begin * size_of(to));
  }
}

void saturate(Dtype dtype, float* values, size_t count, float stray) {
  const auto end = static_cast<float>(largest(dtype));
  Leveled<saturate_kernel>::run(values, count, bits_of(end), bits_of(end + stray));
}

void add_floats(Dtype dtype, const float* values, size_t count, std::byte* accumulator) {
  if (dtype == Dtype::float32)
    return Leveled<add_kernel>::run(values, count, reinterpret_cast<Single*>(accumulator));
  constexpr size_t kRun = 512;
  float wide[kRun];
  for (size_t begin = 0; begin < count; begin += kRun) {
    const size_t some = std::min(kRun, count - begin);
    std::byte* at = accumulator + begin * size_of(dtype);
    widen(dtype, at, some, wide);
    Leveled<add_kernel>::run(values + begin, some, reinterpret_cast<Single*>(wide));
    narrow(dtype, wide, some, at);
  }
}

void subtract_floats(Dtype dtype, const float* from, float* values, int times, size_t count) {
  Leveled<subtract_kernel>::run(from, values, static_cast<float>(times), count);
  if (dtype != Dtype::float32) saturate(dtype, values, count, std::numeric_limits<float>::max());
}

double max_abs(Dtype dtype, const std::byte* in, size_t count) {
  constexpr size_t kRun = 512;
  float wide[kRun];
  int32_t most = 0;
  for (size_t begin = 0; begin < count; begin += kRun) {
    const size_t some = std::min(kRun, count - begin);
    widen(dtype, in + begin * size_of(dtype), some, wide);
    most = std::max(most, Leveled<magnitude_kernel>::run(wide, some));
  }
  return std::bit_cast<float>(most);
}

double rounding(Dtype dtype, double max_abs) {
  if (dtype == Dtype::float16) return max_abs * 0x1p-11 + 0x1p-25;
  if (dtype == Dtype::bfloat16) return max_abs * 0x1p-8 + 0x1p-134;
  return 0;
}

double largest(Dtype dtype) {
  if (dtype == Dtype::float16) return 65504;
  return dtype == Dtype::bfloat16 ? 0x1.fep127 : 0x1.fffffep127;
}

}  // namespace gpucomm
