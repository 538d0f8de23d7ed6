#include "base/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gpucomm {

#if defined(__x86_64__)

__attribute__((target("avx2"))) static void copy_vector(char* to, const char* from) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// The ends go to any address, and what lies between to multiples of a vector.
__attribute__((target("avx2"))) static void copy_vectors(char* to, const char* from, size_t bytes) {
  constexpr size_t kVector = sizeof(__m256i), kAtOnce = 4;
  copy_vector(to, from);
  size_t at = kVector - reinterpret_cast<uintptr_t>(to) % kVector;
  for (; at + kAtOnce * kVector <= bytes; at += kAtOnce * kVector) {
    __m256i some[kAtOnce];
    for (size_t i = 0; i < kAtOnce; ++i)
      some[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + i * kVector));
    for (size_t i = 0; i < kAtOnce; ++i)
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + at + i * kVector), some[i]);
  }
  for (; at + kVector <= bytes; at += kVector) copy_vector(to + at, from + at);
  copy_vector(to + bytes - kVector, from + bytes - kVector);
}

bool copy_by_loop(void* to, const void* from, size_t bytes) {
  static const bool can = __builtin_cpu_supports("avx2");
  if (can) copy_vectors(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  return can;
}

// Elsewhere `rep movsb` need not read the lines that it writes, which pays where the peer's core is far.
void copy_bytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kShort = 2 << 10, kPage = 4 << 10, kNear = 32;
  static const bool loops = __builtin_cpu_is("amd");
  const size_t further = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  const bool slow = loops && bytes >= kShort && further && further < kNear;
  if (!slow || !copy_by_loop(to, from, bytes)) std::memcpy(to, from, bytes);
}

// Line by line, so that each leaves the core whole; in order before what is stored after it.
void copy_non_temporal(void* to, const void* from, size_t bytes) {
  constexpr size_t kVectors = 4, kLine = kVectors * sizeof(__m128i);
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  size_t at = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(target, source, at);
  for (; at + kLine <= bytes; at += kLine) {
    __m128i line[kVectors];
    std::memcpy(line, source + at, kLine);
    for (size_t i = 0; i < kVectors; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + at) + i, line[i]);
  }
  _mm_sfence();
  std::memcpy(target + at, source + at, bytes - at);
}

#else

bool copy_by_loop(void*, const void*, size_t) { return false; }
void copy_bytes(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void copy_non_temporal(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace gpucomm
