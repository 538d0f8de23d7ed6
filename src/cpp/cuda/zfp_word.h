// A block of 4 elements whose code is one word (R = 8). Integers are what takes the time, and a GPU
// multiplies them, and adds floats, beside that. So products move bits, and decoding transforms floats:
// exactly, for a block has at most 11 planes that are not all zeros.
#pragma once
#include "codecs/blocks/zfp.h"
#include "cuda/dense.h"
#include "cuda/zfp_bits.h"
#include "cuda/zfp_word_tables.h"

namespace gpucomm::cuda {

inline constexpr unsigned kZfpCodeBits = kWordBits - kZfpHeaderBits;
using blocks::zfp::kNegabinary;

GPUCOMM_PROGRAM uint32_t entry_at(const uint32_t* table, unsigned byte) {
  return *reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(table) + byte);
}

// Eight planes coded.
struct EightPlanes {
  uint32_t bits;    // the first on top; those of them that fit
  uint32_t length;  // of all
  uint32_t last;    // the entry of the last two planes
};

// The upper eight planes of q, exclusive or `flip`. before: the entry of the planes above these.
GPUCOMM_PROGRAM EightPlanes encode_eight(const ZfpWordTables& tables, const uint32_t (&q)[4], uint32_t flip,
                                         uint32_t before) {
  constexpr uint32_t kGather = 1u << 18 | 1u << 12 | 1u << 6 | 1;
  const uint32_t bytes = bytes_at<0x5410>(bytes_at<0x7373>(q[0], q[1]), bytes_at<0x7373>(q[2], q[3]));
  const uint32_t flips = bytes_at<0x3333>(flip, 0);
  uint32_t entry = before, bits = 0, length = 0;
#pragma unroll
  for (unsigned two = 0; two < 4; ++two) {
    // Two bits of each byte; by the product those of all meet on top.
    const uint32_t pairs = differing(bytes, flips, 0xc0c0c0c0 >> (2 * two)) * (kGather << (2 * two));
    entry = entry_at(tables.encode, 4 * bytes_at<0xdd53>(pairs, entry));
    if (two < 3)
      bits = append(bits, entry, entry);
    else
      bits = append(bits, 0, 0u - length) | shift_right(entry & ~0u << kZfpCodeBegin, length);
    length += entry;  // in the lowest byte
  }
  return {bits, length & 255, entry};
}

// plain: `most`, the largest magnitude, is as blocks::zfp::scaled() asks for it.
GPUCOMM_PROGRAM uint32_t encode_word(const ZfpWordTables& tables, const Four& x, uint32_t most, bool plain) {
  uint32_t q[4], header = 2 * (most >> 23) + 3;
  if (plain) {
    blocks::zfp::scaled<true>(x.at, most, q);
  } else {
    blocks::zfp::scaled<false>(x.at, most, q);
    if (most == 0) header = 0;
  }
  blocks::zfp::transform(q);
  for (uint32_t& coefficient : q) coefficient += kNegabinary;
  constexpr uint32_t flip = kNegabinary;  // in place of four exclusive ors, one of the bytes
  const unsigned top = highest((q[0] ^ flip) | (q[1] ^ flip) | (q[2] ^ flip) | (q[3] ^ flip) | 1);
  const uint32_t power = factor_for(kWordBits - 1 - top);
  for (uint32_t& coefficient : q) coefficient *= power;
  const EightPlanes planes = encode_eight(tables, q, flip * power, 0);
  uint32_t bits = planes.bits;
  if (planes.length + kZfpHeaderBits <= top) {  // rare
    for (uint32_t& coefficient : q) coefficient <<= 8;
    bits |= encode_eight(tables, q, flip * power << 8, planes.last).bits >> planes.length;
  }
  return shift_left(reversed(bits), kZfpHeaderBits + kWordBits - 1 - top) | header;
}

// What is read of a block: of each coefficient its bits in the planes that have any, two of them in a word.
struct ZfpPlanes {
  uint32_t a = 0, b = 0;
  uint32_t power;  // of two, for each plane, and those above all

  GPUCOMM_PROGRAM void take(uint32_t entry) {
    const uint32_t by = entry >> 28;
    a = a * by + (entry & (7u << 5 | 7u << 16));
    b = b * by + (entry & (7u << 8 | 7u << 19));
    power *= by;
  }
};

// As it is written in the format, for what the way below does not take.
GPUCOMM_PROGRAM void decode_word_by_bits(uint32_t word, Four& x) {
  uint32_t q[4] = {}, n = 0, stream = word >> kZfpHeaderBits, left = word & 1 ? kZfpCodeBits : 0;
#pragma unroll 1
  for (unsigned plane = kWordBits; left && plane-- > 0;) {
    const zfp::Code code = zfp::decode_plane(n, stream, left);
    for (int i = 0; i < 4; ++i) q[i] |= (code.bits >> i & 1) << plane;
    stream >>= code.length, left -= code.length, n = code.n;
  }
  blocks::zfp::integers(q);
  blocks::zfp::values(q, word >> 1 & 255, x.at);
}

// Two coefficients of up to 11 bits in negabinary, at bits 5 and 16 of a word, to floats: times `unit`.
GPUCOMM_PROGRAM void to_floats(uint32_t two, float unit, float& first, float& second) {
  constexpr uint32_t kFlip = kNegabinary & ((1u << 11) - 1), k2To23 = 0x4b000000;
  two ^= kFlip << 5 | kFlip << 16;
  const float upper = 1 << 23, most = kFlip;
  const float finer = unit / 32;
  first = times_plus(blocks::float_of(bytes_at<0x7410>(two, k2To23)), finer, -finer * (upper + 32 * most));
  second = times_plus(blocks::float_of(bytes_at<0x7432>(two, k2To23)), unit, -unit * (upper + most));
}

// blocks::zfp::integers(), of numbers that it would not round: from coefficients to what the floats were. The
// sum of the squares of all that must not be beyond the integers' range.
GPUCOMM_PROGRAM float restore(float (&q)[4]) {
  q[1] = times_plus(0.5f, q[3], q[1]), q[3] = times_plus(-0.5f, q[1], q[3]);
  const float halved = q[1];
  q[1] += q[3], q[3] = times_plus(2, q[3], -q[1]);
  q[2] += q[0], q[0] = times_plus(2, q[0], -q[2]);
  q[1] += q[2], q[2] = times_plus(2, q[2], -q[1]);
  q[3] += q[0], q[0] = times_plus(2, q[0], -q[3]);
  float squares = halved * halved;
  for (const float value : q) squares = times_plus(value, value, squares);
  return squares;
}

// False where the coded bits may end within two looks into the table: the planes are wrong then.
GPUCOMM_PROGRAM bool read_planes(const ZfpWordTables& tables, uint32_t word, ZfpPlanes& planes) {
  constexpr uint32_t kMore = 1u << kZfpWindow;                     // above the bits of a window that is full
  uint32_t pending = word >> kZfpHeaderBits | 1u << kZfpCodeBits;  // a 1 behind the last bit
  planes.power = pending & (0 - pending);
  pending >>= highest(planes.power);
  uint32_t entry = entry_at(tables.decode + kMore, 4 * and_or(pending, kMore - 1, 0));
  planes.take(entry), pending = shift_right(pending, entry);
  entry = entry_at(tables.decode + kMore, (entry & kZfpFieldOfN) + 4 * and_or(pending, kMore - 1, 0));
  planes.take(entry), pending = shift_right(pending, entry);
#pragma unroll 1
  do {
    const uint32_t some = and_or(pending, kMore - 1, kMore);
    entry = entry_at(tables.decode, (entry & kZfpFieldOfN) + 4 * (some < pending ? some : pending));
    planes.take(entry), pending = shift_right(pending, entry);
  } while (pending > 1);
  constexpr unsigned kMostZeros = kZfpCodeBits - 2 * kZfpWindow;
  return word & ((2u << kMostZeros) - 1) << kZfpHeaderBits;
}

// All is exact but the last product, which underflows as the host's.
GPUCOMM_PROGRAM void decode_word(const ZfpWordTables& tables, uint32_t word, Four& x) {
  ZfpPlanes planes;
  const bool whole = read_planes(tables, word, planes);
  // Integers of 32 bits, divided by 2^35: the units are powers of -2.
  float q[4];
  const float unit = blocks::float_of((124u << 23) - highest(planes.power) * ((1u << 23) + (1u << 31)));
  to_floats(planes.a, unit, q[0], q[2]);
  to_floats(planes.b >> 3, unit, q[1], q[3]);
  const bool fits = restore(q) < 0x1p-8f;
  // 2 field + 1, if anything is in the block. The factor is 2^(field - 122), of which this has the exponent.
  const uint32_t header = and_or(word, 0x1ff, 0);
  const float scale = word & 1 ? blocks::float_of((header << 22) + (9u << 22)) : 0;
  for (unsigned i = 0; i < 4; ++i) x.at[i] = times_plus(q[i], scale, 0);  // 0, not -0
  constexpr uint32_t kMostField = 249;                                    // whose factor is a float32
  if ((word & 1) && !(whole && fits && header <= 2 * kMostField + 1)) decode_word_by_bits(word, x);
}

}  // namespace gpucomm::cuda
