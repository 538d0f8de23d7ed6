// int8, int4: blocks of 128 elements as integers of 8 or 4 bits times a step per block.
// Wire: the integers, two's complement, then 2 bytes of step per block: 8.125 and 4.125 bits per element.
// Of int4, byte j of a block holds elements j (low) and j + half (high): both halves are contiguous to a SIMD
// loop. Error: at most half a step, which is the block's largest magnitude / 127 (/ 7), rounded up to 8 bits.
#include <cmath>
#include <cstring>
#include <limits>

#include "codecs/block_codec.h"
#include "codecs/blocks/uniform.h"

namespace gpucomm {
namespace {

template <int kBits>
struct Integers {
  using Levels = blocks::Uniform<kBits == 8 ? 127 : 7>;
  static constexpr size_t kBlock = 128, kScaleBytes = 2;
  static constexpr size_t payload_bytes(size_t count) { return kBits == 8 ? count : (count + 1) / 2; }

  static GPUCOMM_BLOCK bool encode_block(const float* in, size_t count, std::byte* payload,
                                         std::byte* scale) {
    const uint32_t most = blocks::largest_bits(in, count);
    if (most >= blocks::kInfinityBits) return false;
    const uint16_t step = Levels::step_for(blocks::float_of(most));
    std::memcpy(scale, &step, sizeof step);
    quantise(in, count, 1.0f / Levels::value_of(step), payload);
    return true;
  }

  static GPUCOMM_BLOCK void quantise(const float* in, size_t count, float inverse, std::byte* payload) {
    if constexpr (kBits == 8) {
      for (size_t i = 0; i < count; ++i) payload[i] = std::byte(Levels::quantise(in[i], inverse));
    } else {
      const size_t half = (count + 1) / 2;
      for (size_t i = 0; i < count / 2; ++i) {
        const int32_t low = Levels::quantise(in[i], inverse), high = Levels::quantise(in[half + i], inverse);
        payload[i] = std::byte((low & 15) | (high & 15) << 4);
      }
      if (count % 2) payload[half - 1] = std::byte(Levels::quantise(in[half - 1], inverse) & 15);
    }
  }

  static GPUCOMM_BLOCK bool decode_block(const std::byte* payload, const std::byte* scale, size_t count,
                                         float* out) {
    uint16_t bits;
    std::memcpy(&bits, scale, sizeof bits);
    if (!Levels::valid(bits)) return false;
    const float step = Levels::value_of(bits);
    if constexpr (kBits == 8) {
      for (size_t i = 0; i < count; ++i) out[i] = Levels::restore(static_cast<int8_t>(payload[i]), step);
    } else {
      const size_t half = (count + 1) / 2;
      for (size_t i = 0; i < half; ++i) out[i] = Levels::restore(sign_extend(payload[i]), step);
      for (size_t i = half; i < count; ++i)
        out[i] = Levels::restore(sign_extend(payload[i - half] >> 4), step);
    }
    return true;
  }

  static GPUCOMM_BLOCK int32_t sign_extend(std::byte nibble) {
    return (static_cast<int32_t>(nibble & std::byte(15)) ^ 8) - 8;
  }
};

template <int kBits>
class IntegerCodec final : public BlockCodec<Integers<kBits>> {
 public:
  const CodecTraits& traits() const override {
    static constexpr CodecTraits traits = {.bound = Bound::block, .block = Integers<kBits>::kBlock};
    return traits;
  }
  std::string spec() const override { return kBits == 8 ? "int8" : "int4"; }

 protected:
  // Half a step, and what rounding x / step may shift it.
  double lost(double block_max) const override {
    using Levels = typename Integers<kBits>::Levels;
    auto max_abs = static_cast<float>(block_max);
    if (max_abs < block_max) max_abs = std::nextafter(max_abs, std::numeric_limits<float>::infinity());
    if (!std::isfinite(max_abs)) return std::numeric_limits<double>::infinity();
    return Levels::value_of(Levels::step_for(max_abs)) * (0.5 + 0x1p-15);
  }
};

const Registry<CodecEntry>::Add int8{"int8",
                                     {"Blocks of 128 as 8-bit integers times a step per block.",
                                      "int8",
                                      {"int8"},
                                      without_argument<IntegerCodec<8>>,
                                      {"int8"}}};
const Registry<CodecEntry>::Add int4{"int4",
                                     {"Blocks of 128 as 4-bit integers times a step per block.",
                                      "int4",
                                      {"int4"},
                                      without_argument<IntegerCodec<4>>,
                                      {"int4"}}};

}  // namespace
}  // namespace gpucomm
