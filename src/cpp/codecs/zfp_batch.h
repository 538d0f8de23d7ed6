// zfp's embedded code of many blocks at once, array by array, so that loops over them are SIMD. Planes above
// a block's first that has a bit are one 0 each, and are passed at once: from there on all blocks go plane by
// plane together. What is coded beyond the last plane is zeros, as is what zfp fills up with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codecs/blocks/zfp.h"
#include "codecs/zfp_planes.h"

namespace gpucomm::zfp {

inline constexpr size_t kBatch = 64;  // blocks; they fill whole words at any rate
inline constexpr size_t kBatchElements = 4 * kBatch;
inline constexpr uint32_t kHeaderBits = 9;
inline constexpr uint32_t kEmpty = ~0u;

// Word: what holds a block's code, or its first 64 bits, where `upper` has those behind.
template <class Word>
struct Batch {
  uint32_t field[kBatch];            // the coded exponent; kEmpty: nothing but zeros
  uint32_t zeros[kBatch];            // planes without a bit, above all others
  uint32_t q[4][kBatch];             // the coefficients; as they are coded the next planes are on top
  Word word[kBatch], upper[kBatch];  // the code
  Word used[kBatch], n[kBatch], planes[kBatch];  // planes: eight, the next one on top
};

template <class Word>
GPUCOMM_BLOCK Word shift_left(Word value, Word by) {
  return by < 8 * sizeof(Word) ? value << by : 0;
}
template <class Word>
GPUCOMM_BLOCK Word shift_right(Word value, Word by) {
  return by < 8 * sizeof(Word) ? value >> by : 0;
}

// The place of a number's highest bit, which above bit 30 is to be the only one; by a conversion, which SIMD
// has at all levels. Without the bit below the highest a number is not rounded up to the next place.
GPUCOMM_BLOCK uint32_t place_of_highest(uint32_t bits) {
  const auto value = static_cast<float>(static_cast<int32_t>(bits & ~(bits >> 1)));
  return ((blocks::bits_of(value) & blocks::kMagnitudeBits) >> 23) - 127;
}

// False if a block holds NaN or Inf.
template <class Word>
GPUCOMM_BLOCK bool transform(const float* in, Batch<Word>& batch) {
  uint32_t most = 0;
  for (size_t b = 0; b < kBatch; ++b) {
    float x[4];
    uint32_t max_bits = 0;
    for (int i = 0; i < 4; ++i) {
      x[i] = in[4 * b + i];
      const uint32_t magnitude = blocks::bits_of(x[i]) & blocks::kMagnitudeBits;
      max_bits = magnitude > max_bits ? magnitude : max_bits;
    }
    most = max_bits > most ? max_bits : most;
    const bool finite = max_bits < blocks::kInfinityBits;
    // Inf and NaN convert to no integer.
    for (int i = 0; i < 4; ++i) x[i] = blocks::float_of(blocks::choose(finite, blocks::bits_of(x[i]), 0));
    uint32_t q[4];
    blocks::zfp::coefficients(x, blocks::choose(finite, max_bits, 0), q);
    const uint32_t zeros = 30 - place_of_highest((q[0] | q[1] | q[2] | q[3]) >> 1 | 1);
    for (int i = 0; i < 4; ++i) batch.q[i][b] = q[i] << zeros;
    batch.zeros[b] = zeros;
    batch.field[b] = blocks::choose(max_bits != 0, (max_bits >> 23) + 1, kEmpty);
  }
  return most < blocks::kInfinityBits;
}

template <class Word>
GPUCOMM_BLOCK void next_planes(Batch<Word>& batch) {
  for (size_t b = 0; b < kBatch; ++b) {
    const uint32_t q[4] = {batch.q[0][b], batch.q[1][b], batch.q[2][b], batch.q[3][b]};
    batch.planes[b] = blocks::zfp::upper_planes(q);
    for (int i = 0; i < 4; ++i) batch.q[i][b] = q[i] << 8;
  }
}

// Two planes of every block. Returns the bits that each has at least.
template <class Word, bool kWide>
GPUCOMM_BLOCK Word embed_two(Batch<Word>& batch) {
  Word least = ~Word{0};
  for (size_t b = 0; b < kBatch; ++b) {
    const Word used = batch.used[b], planes = batch.planes[b];
    const Word entry =
        kEncodeTable<Word>[static_cast<std::make_signed_t<Word>>(batch.n[b] << 8 | (planes >> 24 & 0xff))];
    const Word code = entry & 0xffff, after = used + (entry >> 16 & 0xff);
    batch.word[b] |= shift_left(code, used);
    if (kWide) batch.upper[b] |= shift_right<Word>(code, 64 - used) | shift_left<Word>(code, used - 64);
    batch.n[b] = entry >> 24;
    batch.planes[b] = planes << 8;
    batch.used[b] = after;
    least = after < least ? after : least;
  }
  return least;
}

// The embedded code of all blocks, until each has `bits` bits.
template <class Word, bool kWide>
GPUCOMM_BLOCK void embed(Batch<Word>& batch, uint32_t bits) {
  for (size_t b = 0; b < kBatch; ++b) {
    const Word field = batch.field[b];
    batch.word[b] = batch.field[b] == kEmpty ? 0 : field << 1 | 1;
    batch.used[b] = batch.field[b] == kEmpty ? 128 : kHeaderBits + batch.zeros[b];
    batch.n[b] = batch.upper[b] = 0;
  }
  for (int eight = 0; eight < 4; ++eight) {
    next_planes(batch);
    for (int two = 0; two < 4; ++two)
      if (embed_two<Word, kWide>(batch) >= bits) return;
  }
}

template <class Code, class Word>
GPUCOMM_BLOCK void pack_all(const Word (&words)[kBatch], std::byte* out) {
  for (size_t b = 0; b < kBatch; ++b) {
    const auto code = static_cast<Code>(words[b]);
    std::memcpy(out + b * sizeof code, &code, sizeof code);
  }
}
template <class Code, class Word>
GPUCOMM_BLOCK void unpack_all(const std::byte* in, Word (&words)[kBatch]) {
  for (size_t b = 0; b < kBatch; ++b) {
    Code code;
    std::memcpy(&code, in + b * sizeof code, sizeof code);
    words[b] = code;
  }
}

// Words of `bits` bits each, one behind the other.
template <class Word>
GPUCOMM_BLOCK void pack(const Batch<Word>& batch, uint32_t bits, size_t blocks, std::byte* out) {
  if (blocks == kBatch && bits == 16) return pack_all<uint16_t>(batch.word, out);
  if (blocks == kBatch && bits == 32) return pack_all<uint32_t>(batch.word, out);
  uint64_t word = 0, fill = 0;
  const auto put = [&](uint64_t value, uint64_t length) {
    value &= shift_right(~uint64_t{0}, 64 - length);
    word |= value << fill;
    fill += length;
    if (fill < 64) return;
    std::memcpy(out, &word, 8);
    out += 8, fill -= 64;
    word = fill ? value >> (length - fill) : 0;
  };
  for (size_t b = 0; b < blocks; ++b) {
    put(batch.word[b], bits < 64 ? bits : 64);
    if (bits > 64) put(batch.upper[b], bits - 64);
  }
  if (fill) std::memcpy(out, &word, 8);
}

template <class Word>
GPUCOMM_BLOCK void unpack(const std::byte* in, uint32_t bits, size_t blocks, Batch<Word>& batch) {
  if (blocks == kBatch && bits == 16) return unpack_all<uint16_t>(in, batch.word);
  if (blocks == kBatch && bits == 32) return unpack_all<uint32_t>(in, batch.word);
  uint64_t word = 0, left = 0;
  const auto take = [&](uint64_t length) {
    uint64_t value = word;
    if (left < length) {
      std::memcpy(&word, in, 8);
      in += 8;
      value |= shift_left(word, left);
      word = shift_right(word, length - left);
      left += 64 - length;
    } else {
      word = shift_right(word, length);
      left -= length;
    }
    return value & shift_right(~uint64_t{0}, 64 - length);
  };
  for (size_t b = 0; b < kBatch; ++b) {
    batch.word[b] = static_cast<Word>(b < blocks ? take(bits < 64 ? bits : 64) : 0);
    batch.upper[b] = static_cast<Word>(b < blocks && bits > 64 ? take(bits - 64) : 0);
  }
}

// The headers, and the zeros behind them.
template <class Word, bool kWide>
GPUCOMM_BLOCK void open(Batch<Word>& batch, uint32_t bits) {
  for (size_t b = 0; b < kBatch; ++b) {
    const Word word = batch.word[b];
    const Word code = word >> kHeaderBits | (kWide ? batch.upper[b] << (64 - kHeaderBits) : 0);
    const auto low = static_cast<uint32_t>(code), lowest = low & (0 - low);
    const bool some = (word & 1) && low;  // a block of 32 planes of zeros is nothing but zeros
    const uint32_t zeros = blocks::choose(some, place_of_highest(lowest), 0);
    batch.field[b] = word >> 1 & 0xff;
    batch.zeros[b] = zeros;
    batch.used[b] = some ? kHeaderBits + zeros : bits;
    batch.word[b] = code >> zeros;
    if (kWide) {
      const Word upper = batch.upper[b] >> kHeaderBits;
      batch.word[b] |= shift_left<Word>(upper, 64 - zeros);
      batch.upper[b] = upper >> zeros;
    }
    batch.n[b] = 0;
    for (int i = 0; i < 4; ++i) batch.q[i][b] = 0;
  }
}

// A plane of every block, `place` bits up in the eight. Returns the bits that each has taken at least.
template <class Word, bool kWide>
GPUCOMM_BLOCK Word unembed_one(Batch<Word>& batch, uint32_t bits, int place) {
  Word least = ~Word{0};
  for (size_t b = 0; b < kBatch; ++b) {
    const Word used = batch.used[b], word = batch.word[b], rest = bits - used;
    const Word left = rest < kLongest ? rest : kLongest;
    const Word entry = kDecodeTable<Word>[static_cast<std::make_signed_t<Word>>(left << 10 | batch.n[b] << 7 |
                                                                                (word & 127))];
    const Word length = entry >> 16 & 0xff, after = used + length;
    batch.planes[b] |= (entry & 15) << place;
    batch.word[b] = word >> length | (kWide ? shift_left<Word>(batch.upper[b], 64 - length) : 0);
    if (kWide) batch.upper[b] >>= length;
    batch.used[b] = after;
    batch.n[b] = entry >> 24;
    least = after < least ? after : least;
  }
  return least;
}

template <class Word>
GPUCOMM_BLOCK void add_planes(Batch<Word>& batch, int place) {
  for (size_t b = 0; b < kBatch; ++b) {
    const uint32_t bytes = blocks::zfp::bytes_of_planes(static_cast<uint32_t>(batch.planes[b]));
    for (int i = 0; i < 4; ++i) batch.q[i][b] |= (bytes >> (8 * i) & 0xff) << place;
  }
}

template <class Word, bool kWide>
GPUCOMM_BLOCK void unembed(Batch<Word>& batch, uint32_t bits) {
  open<Word, kWide>(batch, bits);
  Word least = 0;
  for (int place = 24; place >= 0 && least < bits; place -= 8) {
    for (size_t b = 0; b < kBatch; ++b) batch.planes[b] = 0;
    for (int plane = 28; plane >= 0 && least < bits; plane -= 4)
      least = unembed_one<Word, kWide>(batch, bits, plane);
    add_planes(batch, place);
  }
}

template <class Word>
GPUCOMM_BLOCK void restore(const Batch<Word>& batch, float* out) {
  for (size_t b = 0; b < kBatch; ++b) {
    float x[4];
    uint32_t q[4];
    for (int i = 0; i < 4; ++i) q[i] = batch.q[i][b] >> batch.zeros[b];  // what is beyond plane 0 goes
    blocks::zfp::integers(q);
    blocks::zfp::values(q, batch.field[b], x);
    for (int i = 0; i < 4; ++i) out[4 * b + i] = x[i];
  }
}

}  // namespace gpucomm::zfp
