// What a GPU has instructions for. Of a number of bits to shift by only the lowest five say anything, where
// nothing else is said.
#pragma once
#include "cuda/program.h"

namespace gpucomm::cuda {

inline constexpr unsigned kWordBits = 32;

// The highest that is 1; -1 where none is.
GPUCOMM_PROGRAM unsigned highest(uint32_t bits) {
#ifdef __CUDACC__
  unsigned place;
  asm("bfind.u32 %0, %1;" : "=r"(place) : "r"(bits));
  return place;
#else
  return bits ? kWordBits - 1 - static_cast<unsigned>(__builtin_clz(bits)) : ~0u;
#endif
}

// The zeros above it; -1 where there is none.
GPUCOMM_PROGRAM uint32_t zeros_above(uint32_t bits) {
#ifdef __CUDACC__
  uint32_t zeros;
  asm("bfind.shiftamt.u32 %0, %1;" : "=r"(zeros) : "r"(bits));
  return zeros;
#else
  return bits ? static_cast<uint32_t>(__builtin_clz(bits)) : ~0u;
#endif
}

// By any number of bits.
GPUCOMM_PROGRAM uint32_t shift_left(uint32_t bits, unsigned by) {
#ifdef __CUDACC__
  uint32_t shifted;
  asm("shl.b32 %0, %1, %2;" : "=r"(shifted) : "r"(bits), "r"(by));
  return shifted;
#else
  return by < kWordBits ? bits << by : 0;
#endif
}

GPUCOMM_PROGRAM uint32_t shift_right(uint32_t bits, unsigned by) {
#ifdef __CUDACC__
  return __funnelshift_r(bits, 0, by);
#else
  return bits >> (by & 31);
#endif
}

// The same of a word of 64 bits, of which the lower half is left.
GPUCOMM_PROGRAM uint32_t shift_right(uint32_t low, uint32_t high, unsigned by) {
#ifdef __CUDACC__
  return __funnelshift_r(low, high, by);
#else
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (by & 31));
#endif
}

// The upper `count` bits of `more`, behind `bits`.
GPUCOMM_PROGRAM uint32_t append(uint32_t bits, uint32_t more, unsigned count) {
#ifdef __CUDACC__
  return __funnelshift_l(more, bits, count);
#else
  return static_cast<uint32_t>((uint64_t{bits} << 32 | more) << (count & 31) >> 32);
#endif
}

// 2^exponent, 0 from 2^32 on: to multiply by, where the compiler would shift if it saw 1u << exponent.
GPUCOMM_PROGRAM uint32_t factor_for(unsigned exponent) {
#ifdef __CUDACC__
  uint32_t power;
  asm("bmsk.clamp.b32 %0, %1, 1;" : "=r"(power) : "r"(exponent));
  return power;
#else
  return exponent < kWordBits ? 1u << exponent : 0;
#endif
}

// What a table says of three bits, of each three in turn: its bit 4 a + 2 b + c. One instruction, also where
// two of the three are constants, which compilers do not take apart.
template <uint32_t kTable>
GPUCOMM_PROGRAM uint32_t of_three(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t bits = 0;
#ifdef __CUDACC__
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(bits) : "r"(a), "r"(b), "r"(c), "n"(kTable));
#else
  for (unsigned i = 0; i < 8; ++i)
    if (kTable >> i & 1) bits |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
#endif
  return bits;
}
// a & mask: where compilers see that, they may shift and mask again what is shifted and masked already.
GPUCOMM_PROGRAM uint32_t masked(uint32_t a, uint32_t mask) { return of_three<0xc0>(a, mask, 0); }
// (a ^ b) & within.
GPUCOMM_PROGRAM uint32_t differing(uint32_t a, uint32_t b, uint32_t within) {
  return of_three<0x28>(a, b, within);
}

// The last bit first.
GPUCOMM_PROGRAM uint32_t reversed(uint32_t bits) {
#ifdef __CUDACC__
  return __brev(bits);
#else
  uint32_t other = 0;
  for (unsigned i = 0; i < kWordBits; ++i) other |= (bits >> i & 1) << (kWordBits - 1 - i);
  return other;
#endif
}

// Of bits one of which at least is 1.
GPUCOMM_PROGRAM unsigned trailing_zeros(uint32_t bits) { return zeros_above(reversed(bits)); }

// Each hexadecimal digit of `places` says which byte comes there: 0 to 3 of `low`, 4 to 7 of `high`; with 8
// added, eight times the byte's highest bit.
template <uint32_t places>
GPUCOMM_PROGRAM uint32_t bytes_at(uint32_t low, uint32_t high) {
#ifdef __CUDACC__
  uint32_t word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "n"(places));
  return word;
#else
  const uint64_t both = uint64_t{high} << 32 | low;
  uint32_t word = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned place = places >> (4 * i) & 15;
    const auto byte = static_cast<uint8_t>(both >> (8 * (place & 7)));
    word |= static_cast<uint32_t>(place < 8 ? byte : byte >> 7 ? 255 : 0) << (8 * i);
  }
  return word;
#endif
}

// The lower 16 bits, and the upper.
GPUCOMM_PROGRAM void halves_to_floats(uint32_t two, float& low, float& high) {
#ifdef __CUDACC__
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f32.u16 %0, low; cvt.rn.f32.u16 %1, high;}"
      : "=f"(low), "=f"(high)
      : "r"(two));
#else
  low = static_cast<float>(two & 0xffff), high = static_cast<float>(two >> 16);
#endif
}

// a b + c as one instruction, which rounds once: the same elsewhere where the product needs no rounding.
GPUCOMM_PROGRAM float times_plus(float a, float b, float c) {
#ifdef __CUDACC__
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace gpucomm::cuda
