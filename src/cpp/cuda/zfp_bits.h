// The coded bits of a block, written and read anywhere among the words that a warp has in the memory of its
// thread block, where all bits are 0 before. A reader's next() has the next bits, kZfpAhead of them or as
// many as are left, and a 1 above.
#pragma once
#include "cuda/zfp_tables.h"

namespace gpucomm::cuda {

inline constexpr unsigned kZfpHeaderBits = 9;  // whether anything is in the block, and its exponent

template <class Exec>
struct SharedWriter {
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
