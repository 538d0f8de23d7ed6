// fp8_e4m3, fp8_e5m2: blocks of 128 elements as 8-bit floats, scaled by a power of two per block.
// Wire: the 8-bit floats, then 1 byte per block: the exponent of its scale + 127. 8.0625 bits per element.
// Error: 2^-4 (2^-3) of the element, and of those far below the block's largest, half the least 8-bit float.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/block_codec.h"
#include "codecs/blocks/small_float.h"

namespace gpucomm {
namespace {

template <class Format, bool kInfinity>
struct Scaled {
  static constexpr size_t kBlock = 128, kScaleBytes = 1;
  static constexpr size_t payload_bytes(size_t count) { return count; }

  static GPUCOMM_BLOCK bool encode_block(const float* in, size_t count, std::byte* payload,
                                         std::byte* scale) {
    const uint32_t most = blocks::largest_bits(in, count);
    const int exponent = Format::scale_for(most);
    if (most >= blocks::kInfinityBits || exponent >= Format::kMostScale)
      return encode_special(in, count, payload, scale);
    *scale = std::byte(exponent + 127);
    const float inverse = blocks::power_of_two(-exponent);
    int32_t codes[kBlock];  // in one loop GCC would narrow parts of the arithmetic too
    for (size_t i = 0; i < count; ++i) codes[i] = Format::encode(in[i] * inverse);
    for (size_t i = 0; i < count; ++i) payload[i] = std::byte(codes[i]);
    return true;
  }

  // A block with NaN or Inf, which do not count for the scale, or at the end of float32's range.
  static GPUCOMM_BLOCK bool encode_special(const float* in, size_t count, std::byte* payload,
                                           std::byte* scale) {
    uint32_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = blocks::bits_of(in[i]) & blocks::kMagnitudeBits;
      if (!kInfinity && bits == blocks::kInfinityBits) return false;
      if (bits < blocks::kInfinityBits && bits > most) most = bits;
    }
    const int exponent = Format::scale_for(most);
    *scale = std::byte(exponent + 127);
    const float inverse = blocks::power_of_two(-exponent);
    const uint32_t limit = Format::limit_for(exponent);
    for (size_t i = 0; i < count; ++i) payload[i] = std::byte(Format::encode_any(in[i] * inverse, limit));
    return true;
  }

  static GPUCOMM_BLOCK bool decode_block(const std::byte* payload, const std::byte* scale, size_t count,
                                         float* out) {
    const int exponent = static_cast<int>(*scale) - 127;
    if (!Format::valid(exponent)) return false;
    const float factor = blocks::power_of_two(exponent);
    for (size_t i = 0; i < count; ++i) out[i] = Format::decode(static_cast<uint8_t>(payload[i]), factor);
    return true;
  }
};

template <class Format, int kMantissa, bool kInfinity>
class Fp8 final : public BlockCodec<Scaled<Format, kInfinity>> {
 public:
  const CodecTraits& traits() const override {
    static constexpr CodecTraits traits = {.bound = Bound::block,
                                           .block = Scaled<Format, kInfinity>::kBlock,
                                           .keeps_nan = true,
                                           .keeps_infinity = kInfinity};
    return traits;
  }
  std::string spec() const override { return kInfinity ? "fp8_e5m2" : "fp8_e4m3"; }

 protected:
  double lost(double block_max) const override {
    if (block_max > std::numeric_limits<float>::max()) return std::numeric_limits<double>::infinity();
    constexpr double kLeast = kInfinity ? 0x1p-16 : 0x1p-9;  // the least 8-bit float
    return std::max(std::ldexp(block_max, -kMantissa - 1), kLeast / 2 * 0x1p-126);
  }
};

const Registry<CodecEntry>::Add e4m3{
    "fp8_e4m3",
    {"Blocks of 128 as 8-bit floats of 4 bits of precision, scaled by a power of two per block.",
     "fp8_e4m3",
     {"fp8_e4m3"},
     without_argument<Fp8<blocks::E4m3, 3, false>>,
     {"fp8_e4m3"}}};
const Registry<CodecEntry>::Add e5m2{"fp8_e5m2",
                                     {"Blocks of 128 as 8-bit floats of 3 bits of precision and a wide "
                                      "range, scaled by a power of two per block.",
                                      "fp8_e5m2",
                                      {"fp8_e5m2"},
                                      without_argument<Fp8<blocks::E5m2, 2, true>>}};

}  // namespace
}  // namespace gpucomm
