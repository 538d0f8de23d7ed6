// A block of 4 elements whose code is one word (R = 8). Integers are what takes the time, and a GPU
// multiplies them, and adds floats, beside that. So products move bits, and decoding transforms floats:
// exactly, for a block has at most 11 planes that are not all zeros.
#pragma once
#include <cmath>

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
  uint32_t bits;    // the first on top; those of them that fit, but for the last five
  uint32_t length;  // of all, in the lowest byte
  uint32_t last;    // the entry of the last two planes
};

// The upper eight planes of q, exclusive or `flip`. before: the entry of the planes above these. The first
// has a bit, or there are some above.
GPUCOMM_PROGRAM EightPlanes encode_eight(const ZfpEncodeTable& table, const uint32_t (&q)[4], uint32_t flip,
                                         uint32_t before) {
  constexpr uint32_t kGather = 1u << 18 | 1u << 12 | 1u << 6 | 1;
  const uint32_t bytes = bytes_at<0x5410>(bytes_at<0x7373>(q[0], q[1]), bytes_at<0x7373>(q[2], q[3]));
  const uint32_t flips = bytes_at<0x3333>(flip, 0);
  EightPlanes planes = {0, 0, before};
#pragma unroll
  for (unsigned two = 0; two < 4; ++two) {
    // Two bits of each byte; by the product those of all meet on top.
    const uint32_t pairs = differing(bytes, flips, 0xc0c0c0c0 >> (2 * two)) * (kGather << (2 * two));
    const uint32_t entry = entry_at(table.encode, 4 * bytes_at<0xdd53>(pairs, planes.last));
    // The codes of six planes fit in a word; what fits of all eight is then moved to its top.
    planes.bits =
        two < 3 ? append(planes.bits, entry, entry) : shift_right(entry, planes.bits, planes.length);
    planes.length += entry;
    planes.last = entry;
  }
  return planes;
}

// q: integers, of which any is not 0 if `most`, the largest magnitude, is not; or else the word is wrong.
GPUCOMM_PROGRAM uint32_t encode_integers(const ZfpEncodeTable& table, uint32_t (&q)[4], uint32_t most) {
  constexpr uint32_t flip = kNegabinary;  // in place of four exclusive ors, one of the bytes
  const uint32_t header = most ? ((most & blocks::kInfinityBits) >> 22) + 3 : 0;
  blocks::zfp::transform(q);
  for (uint32_t& coefficient : q) coefficient += kNegabinary;
  const uint32_t zeros = zeros_above((q[0] ^ flip) | (q[1] ^ flip) | (q[2] ^ flip) | (q[3] ^ flip));
  const uint32_t power = factor_for(zeros);
  for (uint32_t& coefficient : q) coefficient *= power;
  const EightPlanes planes = encode_eight(table, q, flip * power, 0);
  uint32_t bits = planes.bits;
  if (((planes.length + zeros) << 24 < kZfpCodeBits << 24) & (most != 0)) {  // rare
    for (uint32_t& coefficient : q) coefficient <<= 8;
    bits = (bits & ~0u << kZfpHeaderBits) |
           shift_right(encode_eight(table, q, flip * power << 8, planes.last).bits, planes.length);
  }
  return reversed(bits) * (power << kZfpHeaderBits) + header;
}

// most: the largest magnitude. False where the word is wrong: of tiny numbers, Inf and NaN. What is nothing
// but zeros is right, for scaled() multiplies them by a finite number.
GPUCOMM_PROGRAM bool encode_word_quickly(const ZfpEncodeTable& table, const Four& x, uint32_t most,
                                         uint32_t& word) {
  constexpr uint32_t kLeast = blocks::zfp::kLeastPlain;
  uint32_t q[4];
  blocks::zfp::scaled<true>(x.at, most, q);
  word = encode_integers(table, q, most);
  return (most == 0) | (most - kLeast < blocks::kInfinityBits - kLeast);
}

GPUCOMM_PROGRAM uint32_t encode_word(const ZfpEncodeTable& table, const Four& x, uint32_t most) {
  uint32_t q[4];
  if (most >= blocks::zfp::kLeastPlain)
    blocks::zfp::scaled<true>(x.at, most, q);
  else
    blocks::zfp::scaled<false>(x.at, most, q);
  return encode_integers(table, q, most);
}

// What is read of a block: of each coefficient its bits in the planes that have any, two of them in a word.
struct ZfpPlanes {
  uint32_t a = 0, b = 0;
  uint32_t power = 1;  // of two, for each plane
  uint32_t zeros;      // planes above them

  GPUCOMM_PROGRAM void take(uint32_t entry) {
    const uint32_t by = entry >> 27;
    a = a * by + (entry & (15u << 5 | 15u << 16));
    b = b * by + (entry & (15u << 9 | 15u << 20));
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

// Of a number in negabinary of up to 11 bits, exclusive or this, the number is what is left without this.
inline constexpr uint32_t kZfpFlip = kNegabinary & ((1u << 11) - 1);

// Two coefficients at bits 5 and 16 of a word; more by kZfpFlip, and the first 32 times.
GPUCOMM_PROGRAM void to_floats(uint32_t two, float& first, float& second) {
  two ^= kZfpFlip << 5 | kZfpFlip << 16;
  halves_to_floats(two, first, second);
}

// blocks::zfp::integers(), of numbers that it would not round, as to_floats() gives them: from coefficients
// to what the floats were, exactly. Gives their largest magnitude; where that is in the integers' range,
// nothing on the way was beyond it.
GPUCOMM_PROGRAM float restore(float (&q)[4]) {
  constexpr float kMore = kZfpFlip;
  q[1] = times_plus(16, q[3], q[1]), q[3] = times_plus(-1.0f / 64, q[1], q[3]);
  q[1] = times_plus(1.0f / 32, q[1], q[3]), q[3] = times_plus(2, q[3], -q[1]);
  q[2] = times_plus(1.0f / 32, q[0], q[2]), q[0] = times_plus(1.0f / 16, q[0], -q[2]);
  q[1] -= 1.75f * kMore, q[3] += 1.25f * kMore, q[2] -= 2 * kMore;  // of q[0] it is gone
  // The sum of two numbers and their difference: one of the two is the sum of their magnitudes.
  const float most = fmaxf(fabsf(q[1]) + fabsf(q[2]), fabsf(q[3]) + fabsf(q[0]));
  q[1] += q[2], q[2] = times_plus(2, q[2], -q[1]);
  q[3] += q[0], q[0] = times_plus(2, q[0], -q[3]);
  return most;
}

// By three looks into the table. False where they take more, or the coded bits end within the first two: the
// planes are wrong then.
GPUCOMM_PROGRAM bool read_planes(const ZfpDecodeTable& table, uint32_t word, ZfpPlanes& planes) {
  constexpr uint32_t kMore = 1u << kZfpWindow;                     // above the bits of a window that is full
  uint32_t pending = word >> kZfpHeaderBits | 1u << kZfpCodeBits;  // a 1 behind the last bit
  planes.zeros = trailing_zeros(pending);
  pending = shift_right(pending, planes.zeros);
  // The first window is above the 1 that is left.
  uint32_t entry = entry_at(table.decode + kMore, 2 * masked(pending, 2 * kMore - 1) - 2);
#pragma unroll
  for (unsigned look = 1; look < 3; ++look) {
    planes.take(entry), pending = shift_right(pending, entry);
    const uint32_t* const at = look < 2 ? table.decode + kMore : table.decode;
    const uint32_t window = masked(pending, look < 2 ? kMore - 1 : 2 * kMore - 1);
    entry = entry_at(at, (entry & kZfpFieldOfN) + 4 * window);
  }
  planes.take(entry), pending = shift_right(pending, entry);
  return pending == 1;
}

// What was coded is q times scale. False where they are anything.
GPUCOMM_PROGRAM bool decode_scaled(const ZfpDecodeTable& table, uint32_t word, float (&q)[4], float& scale) {
  ZfpPlanes planes;
  const bool whole = read_planes(table, word, planes);
  to_floats(planes.a, q[0], q[2]);
  to_floats(planes.b >> 4, q[1], q[3]);
  // Integers of 32 bits, divided by (-2)^(32 - count).
  const unsigned count = planes.zeros + highest(planes.power);
  const auto size = static_cast<int32_t>(blocks::bits_of(restore(q)) - count * (1u << 23));
  const bool fits = size < static_cast<int32_t>((127u - 1) << 23);
  // 2 field + 1, if anything is in the block. The integers' factor is 2^(field - 157).
  const uint32_t header = masked(word, 0x1ff), some = masked(word, 1);
  const float factor = blocks::float_of((header << 22) + (3u << 22) - count * ((1u << 23) + (1u << 31)));
  scale = some ? factor : 0;
  // Fields of which this, and all that comes of it, is a normal number.
  constexpr uint32_t kLeast = 2 * 32 + 1, kMost = 2 * 253 + 1;
  return !some | (whole & fits & (header - kLeast <= kMost - kLeast));  // without branches
}

// x: what is to be added. False where the sum is wrong.
GPUCOMM_PROGRAM bool add_word(const ZfpDecodeTable& table, uint32_t word, Four& x) {
  float q[4], scale;
  const bool right = decode_scaled(table, word, q, scale);
  for (unsigned i = 0; i < 4; ++i) x.at[i] = times_plus(q[i], scale, x.at[i]);
  return right;
}

GPUCOMM_PROGRAM void decode_word(const ZfpDecodeTable& table, uint32_t word, Four& x) {
  x = {};
  if (!add_word(table, word, x)) decode_word_by_bits(word, x);
}

}  // namespace gpucomm::cuda
