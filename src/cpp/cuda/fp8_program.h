// fp8_e4m3, fp8_e5m2: blocks of 128 as 8-bit floats and a power of two; the wire is that of codecs/fp8.cpp.
#pragma once
#include "cuda/blocks_program.h"
#include "cuda/fp8_math.h"

namespace gpucomm::cuda {

template <class Format, bool kInfinity>
struct Fp8 {
  static constexpr unsigned kTiles = 4;
  using Raw = BlockRaw<1>;
  struct Shared {};
  static Fp8 make(const char*) { return {}; }

  static GPUCOMM_PROGRAM void store_scale(const Message& message, size_t block, uint32_t scale) {
    cuda::store_scale<1>(message.bytes + message.count, block, scale);
  }

  template <bool kFull>
  GPUCOMM_PROGRAM Raw fetch(const Message& message, const Tile& tile, unsigned lane) const {
    const std::byte* codes = message.bytes + tile.number * kTile;
    Raw raw;
    raw.codes = load_codes<kFull>(codes, lane * kPerLane, tile.count);
    load_scale(message.bytes + message.count, tile.number, raw);
    return raw;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM bool decode(const Exec& ex, Shared&, typename Exec::template Lanes<Raw>& raw, const Tile&,
                              typename Exec::template Lanes<Four>& x) const {
    const uint32_t scale = ex.max([&](unsigned lane) { return scale_of(raw[lane]); });  // the same in all
    const int exponent = static_cast<int>(scale) - 127;
    if (!Format::valid(exponent)) return false;
    const float factor = blocks::power_of_two(exponent);
    ex.each([&](unsigned lane) { from_fp8<Format>(raw[lane].codes, factor, x[lane]); });
    return true;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM uint32_t encode(const Exec& ex, Shared&, typename Exec::template Lanes<Four>& x,
                                  const Tile& tile, const Message& message, Status* status) const {
    const uint32_t most = ex.max([&](unsigned lane) { return largest_bits(x[lane]); });
    const int exponent = Format::scale_for(most);
    if (most >= blocks::kInfinityBits || exponent >= Format::kMostScale)
      return encode_special<kFull>(ex, x, tile, message, status);
    const float inverse = blocks::power_of_two(-exponent);
    return write<kFull>(ex, x, tile, message, exponent,
                        [&](const Four& values) { return to_fp8<Format>(values, inverse); });
  }

  // A block with NaN or Inf, which do not count for the scale, or at the end of float32's range.
  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM uint32_t encode_special(const Exec& ex, typename Exec::template Lanes<Four>& x,
                                          const Tile& tile, const Message& message, Status* status) const {
    if (!kInfinity)
      refuse(ex, x, x, tile, status, [](uint32_t magnitude) { return magnitude == blocks::kInfinityBits; });
    const uint32_t most = ex.max([&](unsigned lane) {
      uint32_t finite = 0;
      for (float value : x[lane].at) {
        const uint32_t bits = blocks::bits_of(value) & blocks::kMagnitudeBits;
        if (bits < blocks::kInfinityBits && bits > finite) finite = bits;
      }
      return finite;
    });
    const int exponent = Format::scale_for(most);
    const float inverse = blocks::power_of_two(-exponent);
    const uint32_t limit = Format::limit_for(exponent);
    return write<kFull>(ex, x, tile, message, exponent, [&](const Four& values) {
      return packed(values, [&](float value) { return Format::encode_any(value * inverse, limit); });
    });
  }

  template <bool kFull, class Exec, class Code>
  GPUCOMM_PROGRAM uint32_t write(const Exec& ex, typename Exec::template Lanes<Four>& x, const Tile& tile,
                                 const Message& message, int exponent, const Code& code) const {
    ex.each([&](unsigned lane) {
      store_codes<kFull>(message.bytes + tile.number * kTile, lane * kPerLane, tile.count, code(x[lane]));
    });
    return static_cast<uint32_t>(exponent + 127);
  }
};

using E4m3 = Fp8<blocks::E4m3, false>;
using E5m2 = Fp8<blocks::E5m2, true>;

}  // namespace gpucomm::cuda
