// zfp:R: blocks of 4 elements in 4R bits, the one-dimensional fixed-rate stream of zfp 1.0 without a header.
// Wire: per block a bit that says whether anything is in it, 8 bits of exponent, 4R - 9 bits of embedded
// code; little- endian words of 64 bits. Byte for byte what LLNL's zfp writes and reads. Error: relative to
// the largest of the 4; gradients are noise to the transform, so it gains little on them. Source: Lindstrom
// 2014, "Fixed-Rate Compressed Floating-Point Arrays", IEEE TVCG 20 (12).
#include "codecs/blocks/zfp.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "codecs/float_codec.h"
#include "codecs/levels.h"
#include "codecs/zfp_planes.h"

namespace gpucomm {
namespace {

using blocks::zfp::Planes;

constexpr size_t kBatch = 64;  // blocks; they fill whole words at any rate
constexpr uint32_t kHeaderBits = 9;

constexpr size_t kBatchElements = 4 * kBatch;

GPUCOMM_BLOCK uint64_t shift_left(uint64_t value, uint64_t by) { return by < 64 ? value << by : 0; }
GPUCOMM_BLOCK uint64_t shift_right(uint64_t value, uint64_t by) { return by < 64 ? value >> by : 0; }

// A batch, array by array, so that loops over it are SIMD.
struct Batch {
  uint32_t field[kBatch];                // the coded exponent; kEmpty: nothing but zeros
  uint64_t high[kBatch], low[kBatch];    // planes; as they are coded the next is on top
  uint64_t word[kBatch], upper[kBatch];  // the block's code, up to 128 bits
  uint64_t used[kBatch], n[kBatch];
};
constexpr uint32_t kEmpty = ~0u;

// False if a block holds NaN or Inf.
GPUCOMM_BLOCK bool transform(const float* in, Batch& batch) {
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
    for (int i = 0; i < 4; ++i) x[i] = finite ? x[i] : 0;  // Inf and NaN convert to no integer
    const Planes planes = blocks::zfp::encode(x, finite ? max_bits : 0);
    batch.high[b] = planes.high;
    batch.low[b] = planes.low;
    batch.field[b] = max_bits ? (max_bits >> 23) + 1 : kEmpty;
  }
  return most < blocks::kInfinityBits;
}

// The embedded code of all blocks, two planes at a time, until each has `bits` bits.
template <bool kWide>
GPUCOMM_BLOCK void embed(Batch& batch, uint64_t bits) {
  for (size_t b = 0; b < kBatch; ++b) {
    const uint64_t field = batch.field[b];
    batch.word[b] = field == kEmpty ? 0 : field << 1 | 1;
    batch.used[b] = field == kEmpty ? 128 : kHeaderBits;
    batch.n[b] = batch.upper[b] = 0;
  }
  for (int step = 0; step < 16; ++step) {
    uint64_t least = bits;
    for (size_t b = 0; b < kBatch; ++b) {
      const uint64_t entry = zfp::kEncodeTable[batch.n[b] << 8 | batch.high[b] >> 56];
      const uint64_t code = entry & 0xffff, used = batch.used[b];
      batch.word[b] |= shift_left(code, used);
      if (kWide) batch.upper[b] |= shift_right(code, 64 - used) | shift_left(code, used - 64);
      batch.used[b] = used + (entry >> 16 & 0xff);
      batch.n[b] = entry >> 24;
      batch.high[b] = batch.high[b] << 8 | batch.low[b] >> 56;
      batch.low[b] <<= 8;
      least = batch.used[b] < least ? batch.used[b] : least;
    }
    if (least >= bits) break;
  }
}

// Words of `bits` bits each, one behind the other.
GPUCOMM_BLOCK void pack(const Batch& batch, uint64_t bits, size_t blocks, std::byte* out) {
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

GPUCOMM_BLOCK void unpack(const std::byte* in, uint64_t bits, size_t blocks, Batch& batch) {
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
    batch.word[b] = b < blocks ? take(bits < 64 ? bits : 64) : 0;
    batch.upper[b] = b < blocks && bits > 64 ? take(bits - 64) : 0;
  }
}

template <bool kWide>
GPUCOMM_BLOCK void unembed(Batch& batch, uint64_t bits) {
  for (size_t b = 0; b < kBatch; ++b) {
    const uint64_t word = batch.word[b];
    batch.field[b] = word >> 1 & 0xff;
    batch.used[b] = word & 1 ? kHeaderBits : bits;
    batch.word[b] = word >> kHeaderBits | (kWide ? batch.upper[b] << (64 - kHeaderBits) : 0);
    batch.upper[b] >>= kHeaderBits;
    batch.n[b] = batch.high[b] = batch.low[b] = 0;
  }
  for (int plane = 31; plane >= 0; --plane) {
    uint64_t least = bits;
    for (size_t b = 0; b < kBatch; ++b) {
      const uint64_t used = batch.used[b];
      const uint64_t left = bits - used < zfp::kLongest ? bits - used : zfp::kLongest;
      const uint64_t entry = zfp::kDecodeTable[left << 10 | batch.n[b] << 7 | (batch.word[b] & 127)];
      const uint64_t length = entry >> 16 & 0xff;
      if (plane >= 16)
        batch.high[b] |= (entry & 15) << (4 * (plane - 16));
      else
        batch.low[b] |= (entry & 15) << (4 * plane);
      batch.word[b] = batch.word[b] >> length | (kWide ? shift_left(batch.upper[b], 64 - length) : 0);
      if (kWide) batch.upper[b] >>= length;
      batch.used[b] = used + length;
      batch.n[b] = entry >> 24;
      least = batch.used[b] < least ? batch.used[b] : least;
    }
    if (least >= bits) break;
  }
}

GPUCOMM_BLOCK void restore(const Batch& batch, float* out) {
  for (size_t b = 0; b < kBatch; ++b) {
    float x[4];
    blocks::zfp::decode({batch.high[b], batch.low[b]}, batch.field[b], x);
    for (int i = 0; i < 4; ++i) out[4 * b + i] = x[i];
  }
}

// The last elements, the last block filled up as zfp does.
GPUCOMM_BLOCK void pad(const float* in, size_t count, float* out) {
  for (size_t i = 0; i < kBatchElements; ++i) out[i] = i < count ? in[i] : 0.0f;
  float* block = out + count / 4 * 4;
  if (count % 4 == 1) block[1] = block[0];
  if (count % 4 == 1 || count % 4 == 2) block[2] = block[1];
  if (count % 4) block[3] = block[0];
}

size_t encode_kernel(const float* in, size_t count, uint64_t bits, std::byte* out) {
  Batch batch;
  float padded[kBatchElements];
  for (size_t begin = 0; begin < count; begin += kBatchElements) {
    const size_t some = count - begin < kBatchElements ? count - begin : kBatchElements;
    if (some < kBatchElements) pad(in + begin, some, padded);
    if (!transform(some < kBatchElements ? padded : in + begin, batch)) return begin;
    bits > 64 ? embed<true>(batch, bits) : embed<false>(batch, bits);
    pack(batch, bits, (some + 3) / 4, out + begin / 4 * bits / 8);
  }
  return count;
}

void decode_kernel(const std::byte* in, size_t count, uint64_t bits, float* out) {
  Batch batch;
  float padded[kBatchElements];
  for (size_t begin = 0; begin < count; begin += kBatchElements) {
    const size_t some = count - begin < kBatchElements ? count - begin : kBatchElements;
    unpack(in + begin / 4 * bits / 8, bits, (some + 3) / 4, batch);
    bits > 64 ? unembed<true>(batch, bits) : unembed<false>(batch, bits);
    restore(batch, some < kBatchElements ? padded : out + begin);
    for (size_t i = 0; some < kBatchElements && i < some; ++i) out[begin + i] = padded[i];
  }
}

class Zfp final : public FloatCodec {
 public:
  explicit Zfp(uint64_t bits) : bits_(bits), spec_(concat("zfp:", bits / 4.0)) {}

  const CodecTraits& traits() const override {
    static constexpr CodecTraits traits = {.lossy = true,
                                           .additive = false,
                                           .fixed_size = true,
                                           .bound = Bound::block,
                                           .block = 4,
                                           .needs_maximum = false,
                                           .keeps_nan = false,
                                           .keeps_infinity = false};
    return traits;
  }
  std::string spec() const override { return spec_; }

 protected:
  size_t coded_bytes(size_t count) const override {
    return ((count / 4 + (count % 4 != 0)) * bits_ + 63) / 64 * 8;
  }
  size_t encode_run(const float* in, Run run, std::byte* out) const override {
    return Leveled<encode_kernel>::run(in, run.count, bits_, out + run.begin / 4 * bits_ / 8);
  }
  size_t decode_run(const std::byte* in, Run run, float* out) const override {
    Leveled<decode_kernel>::run(in + run.begin / 4 * bits_ / 8, run.count, bits_, out);
    return run.count;
  }
  // A plane takes at most 4 bits, and 4 tests come on top of all planes: so many planes are there in full. A
  // cut plane may set one wrong bit. Times the transform's gain; and the rounding of integers of 30 bits.
  double lost(double block_max) const override {
    if (block_max > std::numeric_limits<float>::max()) return std::numeric_limits<double>::infinity();
    const int payload = static_cast<int>(bits_) - static_cast<int>(kHeaderBits);
    const int planes = std::clamp((payload - 4) / 4, 0, 32);
    return std::max(block_max, 0x1p-127) * (25 * std::ldexp(1.0, -planes) + 0x1p-23) + 0x1p-149;
  }

 private:
  uint64_t bits_;     // of a block
  std::string spec_;  // asked for in every call
};

std::shared_ptr<const Codec> make(std::string_view argument) {
  double rate;
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), rate);
  const bool number = error == std::errc() && end == argument.data() + argument.size();
  if (!number || !(rate >= 2.25 && rate <= 32) || rate * 4 != std::floor(rate * 4)) return nullptr;
  return std::make_shared<Zfp>(static_cast<uint64_t>(4 * rate));
}

const Registry<CodecEntry>::Add registered{
    "zfp",
    {"The fixed-rate stream of LLNL's zfp in one dimension: blocks of 4 in 4R bits.",
     "zfp:R, where R, from 2.25 to 32 in quarters, is the bits per element",
     {"zfp:4", "zfp:8", "zfp:16", "zfp:17.25", "zfp:32"},
     make}};

}  // namespace
}  // namespace gpucomm
