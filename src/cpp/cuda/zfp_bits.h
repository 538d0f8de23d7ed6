// The coded bits of a block, written and read: as one word of the lane's own, or anywhere among the words
// that a warp has in the memory of its thread block, where all bits are 0 before. A reader's next() has the
// next bits, kZfpAhead of them or as many as are left, and a 1 above. kEndsBeforePlanes: there are fewer bits
// than planes.
#pragma once
#include "cuda/zfp_tables.h"

namespace gpucomm::cuda {

inline constexpr unsigned kZfpHeaderBits = 9;  // whether anything is in the block, and its exponent
inline constexpr unsigned kWordBits = 32;

// Of 32 bits, one of which at least is 1.
GPUCOMM_PROGRAM unsigned leading_zeros(uint32_t bits) {
#ifdef __CUDACC__
  return static_cast<unsigned>(__clz(static_cast<int>(bits)));
#else
  return static_cast<unsigned>(__builtin_clz(bits));
#endif
}
GPUCOMM_PROGRAM unsigned trailing_zeros(uint32_t bits) {
#ifdef __CUDACC__
  return static_cast<unsigned>(__ffs(static_cast<int>(bits)) - 1);
#else
  return static_cast<unsigned>(__builtin_ctz(bits));
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
// The upper `count` bits of `more`, behind `bits`; of count only the lowest five bits say anything.
GPUCOMM_PROGRAM uint32_t append(uint32_t bits, uint32_t more, unsigned count) {
#ifdef __CUDACC__
  return __funnelshift_l(more, bits, count);
#else
  return static_cast<uint32_t>((uint64_t{bits} << 32 | more) << (count & 31) >> 32);
#endif
}

struct WordWriter {
  static constexpr bool kEndsBeforePlanes = true;
  uint32_t word = 0;
  unsigned fill = 0;

  GPUCOMM_PROGRAM bool more() const { return fill < kWordBits; }
  GPUCOMM_PROGRAM void put(uint32_t code, unsigned length) { word |= shift_left(code, fill), fill += length; }
};

struct WordReader {
  static constexpr bool kEndsBeforePlanes = true;
  uint32_t header, pending;  // pending: a 1 behind the last bit

  explicit GPUCOMM_PROGRAM WordReader(uint32_t word)
      : header(word), pending(word & 1 ? 1u << (kWordBits - kZfpHeaderBits) | word >> kZfpHeaderBits : 1) {}

  GPUCOMM_PROGRAM bool more() const { return pending != 1; }
  GPUCOMM_PROGRAM uint32_t next() const {
    constexpr uint32_t kTop = 1u << kZfpAhead;
    const uint32_t some = (pending & (kTop - 1)) | kTop;
    return some < pending ? some : pending;
  }
  GPUCOMM_PROGRAM unsigned zeros() const { return trailing_zeros(pending); }
  GPUCOMM_PROGRAM void skip(unsigned count) { pending >>= count; }
};

template <class Exec>
struct SharedWriter {
  static constexpr bool kEndsBeforePlanes = false;
  const Exec& ex;
  uint32_t* words;
  unsigned fill, left;
  uint64_t pending = 0;

  GPUCOMM_PROGRAM SharedWriter(const Exec& ex, uint32_t* words, unsigned begin, unsigned bits)
      : ex(ex), words(words + begin / kWordBits), fill(begin % kWordBits), left(bits) {}

  GPUCOMM_PROGRAM bool more() const { return left != 0; }
  GPUCOMM_PROGRAM void put(uint32_t code, unsigned length) {  // up to 31 bits, of which `left` go in
    if (length > left) length = left, code &= (1u << length) - 1;
    pending |= static_cast<uint64_t>(code) << fill;
    fill += length, left -= length;
    if (fill >= kWordBits) flush(), fill -= kWordBits, pending >>= kWordBits;
  }
  GPUCOMM_PROGRAM void flush() { ex.or_into(*words++, static_cast<uint32_t>(pending)); }
};

struct SharedReader {
  static constexpr bool kEndsBeforePlanes = false;
  const uint32_t* words;
  unsigned have, left;
  uint64_t pending;
  uint32_t header;

  GPUCOMM_PROGRAM SharedReader(const uint32_t* words, unsigned begin, unsigned bits)
      : words(words + begin / kWordBits + 1),
        have(kWordBits - begin % kWordBits),
        left(bits),
        pending(words[begin / kWordBits] >> begin % kWordBits) {
    header = peek(kZfpHeaderBits);
    skip(kZfpHeaderBits);
    if (!(header & 1)) left = 0;
  }

  // There are at least `count` bits to look at, up to 32; beyond the block's end they mean nothing.
  GPUCOMM_PROGRAM uint32_t peek(unsigned count) {
    if (have < count) pending |= static_cast<uint64_t>(*words++) << have, have += kWordBits;
    return static_cast<uint32_t>(pending);
  }
  GPUCOMM_PROGRAM bool more() const { return left != 0; }
  GPUCOMM_PROGRAM uint32_t next() {
    const uint32_t top = 1u << (left < kZfpAhead ? left : kZfpAhead);
    return (peek(kZfpAhead) & (top - 1)) | top;
  }
  GPUCOMM_PROGRAM unsigned zeros() {
    if (!more()) return 0;
    const unsigned count = trailing_zeros(peek(kWordBits) | 1u << (kWordBits - 1));
    return count < left ? count : left;
  }
  GPUCOMM_PROGRAM void skip(unsigned count) { pending >>= count, have -= count, left -= count; }
};

}  // namespace gpucomm::cuda
