// zfp:R: blocks of 4 elements in 4R bits, the one-dimensional fixed-rate stream of zfp 1.0 without a header.
// Wire: per block a bit that says whether anything is in it, 8 bits of exponent, 4R - 9 bits of embedded
// code; little-endian words of 64 bits. Byte for byte what LLNL's zfp writes and reads. Error: relative to
// the largest of the 4; gradients are noise to the transform, so it gains little on them. Source: Lindstrom
// 2014, "Fixed-Rate Compressed Floating-Point Arrays", IEEE TVCG 20 (12).
#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/float_codec.h"
#include "codecs/levels.h"
#include "codecs/zfp_batch.h"
#include "codecs/zfp_setting.h"

namespace gpucomm {
namespace {

using zfp::Batch;
using zfp::kBatch;
using zfp::kBatchElements;
using zfp::kHeaderBits;

// The last elements, the last block filled up as zfp does.
GPUCOMM_BLOCK void pad(const float* in, size_t count, float* out) {
  for (size_t i = 0; i < kBatchElements; ++i) out[i] = i < count ? in[i] : 0.0f;
  float* block = out + count / 4 * 4;
  if (count % 4 == 1) block[1] = block[0];
  if (count % 4 == 1 || count % 4 == 2) block[2] = block[1];
  if (count % 4) block[3] = block[0];
}

template <class Word, bool kWide>
GPUCOMM_BLOCK size_t encode_blocks(const float* in, size_t count, uint32_t bits, std::byte* out) {
  Batch<Word> batch;
  float padded[kBatchElements];
  for (size_t begin = 0; begin < count; begin += kBatchElements) {
    const size_t some = count - begin < kBatchElements ? count - begin : kBatchElements;
    if (some < kBatchElements) pad(in + begin, some, padded);
    if (!zfp::transform(some < kBatchElements ? padded : in + begin, batch)) return begin;
    zfp::embed<Word, kWide>(batch, bits);
    zfp::pack(batch, bits, (some + 3) / 4, out + begin / 4 * bits / 8);
  }
  return count;
}

template <class Word, bool kWide>
GPUCOMM_BLOCK void decode_blocks(const std::byte* in, size_t count, uint32_t bits, float* out) {
  Batch<Word> batch;
  float padded[kBatchElements];
  for (size_t begin = 0; begin < count; begin += kBatchElements) {
    const size_t some = count - begin < kBatchElements ? count - begin : kBatchElements;
    zfp::unpack(in + begin / 4 * bits / 8, bits, (some + 3) / 4, batch);
    zfp::unembed<Word, kWide>(batch, bits);
    zfp::restore(batch, some < kBatchElements ? padded : out + begin);
    for (size_t i = 0; some < kBatchElements && i < some; ++i) out[begin + i] = padded[i];
  }
}

// Words as narrow as a block's code allows, for more of them are in a register.
size_t encode_kernel(const float* in, size_t count, uint32_t bits, std::byte* out) {
  if (bits <= 32) return encode_blocks<uint32_t, false>(in, count, bits, out);
  if (bits <= 64) return encode_blocks<uint64_t, false>(in, count, bits, out);
  return encode_blocks<uint64_t, true>(in, count, bits, out);
}
void decode_kernel(const std::byte* in, size_t count, uint32_t bits, float* out) {
  if (bits <= 32) return decode_blocks<uint32_t, false>(in, count, bits, out);
  if (bits <= 64) return decode_blocks<uint64_t, false>(in, count, bits, out);
  decode_blocks<uint64_t, true>(in, count, bits, out);
}

class Zfp final : public FloatCodec {
 public:
  explicit Zfp(uint32_t bits) : bits_(bits), spec_(concat("zfp:", bits / 4.0)) {}

  const CodecTraits& traits() const override {
    static constexpr CodecTraits traits = {.bound = Bound::block, .block = 4};
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
  uint32_t bits_;     // of a block
  std::string spec_;  // asked for in every call
};

std::shared_ptr<const Codec> make(std::string_view argument) {
  const uint32_t bits = parse_zfp(argument);
  return bits ? std::make_shared<Zfp>(bits) : nullptr;
}

const Registry<CodecEntry>::Add registered{
    "zfp",
    {"The fixed-rate stream of LLNL's zfp in one dimension: blocks of 4 in 4R bits.",
     "zfp:R, where R, from 2.25 to 32 in quarters, is the bits per element",
     {"zfp:4", "zfp:8", "zfp:16", "zfp:17.25", "zfp:32"},
     make,
     {"zfp:8", "zfp:12", "zfp:16"}}};

}  // namespace
}  // namespace gpucomm
