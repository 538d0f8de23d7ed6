// int8, int4: blocks of 128 as integers and a step; the wire is that of codecs/integers.cpp.
#pragma once
#include "codecs/blocks/uniform.h"
#include "cuda/blocks_program.h"

namespace gpucomm::cuda {

template <int kBits>
struct Integers {
  static constexpr unsigned kTiles = 4, kEncodeTiles = 8;
  static constexpr bool kStaysFused = kBits == 4;  // has more to do for an element than others
  static constexpr unsigned kBlockBytes = kBits == 8 ? kTile : kTile / 2;
  using Levels = blocks::Uniform<kBits == 8 ? 127 : 7>;
  using Raw = BlockRaw<2>;
  static Integers make(const char*) { return {}; }
  struct Shared {
    uint32_t words[kBits == 8 ? 1 : kWarps][kLanes];  // the codes of a block that is not full, a byte each
  };

  static GPUCOMM_PROGRAM size_t payload_bytes(size_t count) { return kBits == 8 ? count : (count + 1) / 2; }
  static GPUCOMM_PROGRAM std::byte* scales(const Message& message) {
    return message.bytes + payload_bytes(message.count);
  }
  static GPUCOMM_PROGRAM void store_scale(const Message& message, size_t block, uint32_t scale) {
    cuda::store_scale<2>(scales(message), block, scale);
  }

  // Of int4 a byte holds an element of each half of the block: the lanes of both halves load it.
  template <bool kFull>
  GPUCOMM_PROGRAM Raw fetch(const Message& message, const Tile& tile, unsigned lane) const {
    const std::byte* codes = message.bytes + tile.number * kBlockBytes;
    Raw raw;
    if constexpr (kBits == 8)
      raw.codes = load_codes<kFull>(codes, lane * kPerLane, tile.count);
    else if constexpr (kFull)
      raw.codes = load<uint32_t>(codes + lane % 16 * 4);
    else
      raw.codes = load_nibbles(codes, tile, lane);
    load_scale(scales(message), tile.number, raw);
    return raw;
  }
  static GPUCOMM_PROGRAM uint32_t load_nibbles(const std::byte* codes, const Tile& tile, unsigned lane) {
    uint32_t nibbles = 0;
    const unsigned half = (tile.count + 1) / 2;
#pragma unroll 1
    for (unsigned i = 0, at = lane * kPerLane; i < kPerLane && at < tile.count; ++i, ++at) {
      const uint32_t byte = load<uint8_t>(codes + (at < half ? at : at - half));
      nibbles |= (at < half ? byte & 15 : byte >> 4) << (8 * i);
    }
    return nibbles;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM bool decode(const Exec& ex, Shared&, typename Exec::template Lanes<Raw>& raw, const Tile&,
                              typename Exec::template Lanes<Four>& x) const {
    const uint32_t bits = ex.max([&](unsigned lane) { return scale_of(raw[lane]); });  // the same in all
    if (!Levels::valid(static_cast<uint16_t>(bits))) return false;
    const float step = Levels::value_of(static_cast<uint16_t>(bits));
    ex.each([&](unsigned lane) {
      uint32_t codes = raw[lane].codes;
      if (kBits == 4 && kFull && lane >= 16) codes >>= 4;
      for (unsigned i = 0; i < kPerLane; ++i)
        x[lane].at[i] = Levels::restore(sign_extend(codes >> (8 * i)), step);
    });
    return true;
  }
  static GPUCOMM_PROGRAM int32_t sign_extend(uint32_t code) {
    if constexpr (kBits == 8) return static_cast<int8_t>(code);
    return (static_cast<int32_t>(code & 15) ^ 8) - 8;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM uint32_t encode(const Exec& ex, Shared& shared, typename Exec::template Lanes<Four>& x,
                                  const Tile& tile, const Message& message, Status* status) const {
    const uint32_t most = ex.max([&](unsigned lane) { return largest_bits(x[lane]); });
    if (most >= blocks::kInfinityBits) {
      refuse(ex, x, x, tile, status, [](uint32_t bits) { return bits >= blocks::kInfinityBits; });
      return 0;
    }
    const uint16_t step = Levels::step_for(blocks::float_of(most));
    const float inverse = 1.0f / Levels::value_of(step);
    std::byte* const codes = message.bytes + tile.number * kBlockBytes;
    ex.each([&](unsigned lane) {
      if (kBits == 8) store_codes<kFull>(codes, lane * kPerLane, tile.count, quantised(x[lane], inverse));
    });
    if constexpr (kBits == 4) write_nibbles<kFull>(ex, shared, x, tile, codes, inverse);
    return step;
  }
  static GPUCOMM_PROGRAM uint32_t quantised(const Four& x, float inverse) {
    uint32_t word = 0;
    for (unsigned i = 0; i < kPerLane; ++i)
      word |= (static_cast<uint32_t>(Levels::quantise(x.at[i], inverse)) & ((1u << kBits) - 1)) << (8 * i);
    return word;
  }

  // The halves of a block of int4, one in the low and one in the high bits of its bytes.
  template <bool kFull, class Exec>
  static GPUCOMM_PROGRAM void write_nibbles(const Exec& ex, Shared& shared,
                                            typename Exec::template Lanes<Four>& x, const Tile& tile,
                                            std::byte* codes, float inverse) {
    if constexpr (kFull) {
      typename Exec::template Lanes<uint32_t> words;
      ex.each([&](unsigned lane) { words[lane] = quantised(x[lane], inverse); });
      ex.each([&](unsigned lane) {
        const uint32_t upper = ex.other(words, lane, kLanes / 2);
        if (lane < kLanes / 2) store(codes + 4 * lane, words[lane] | upper << 4);
      });
    } else {
      uint32_t* const words = shared.words[ex.warp_in_block()];
      ex.each_together([&](unsigned lane) { words[lane] = quantised(x[lane], inverse); });
      ex.each_together([&](unsigned lane) { join(words, lane, tile.count, codes); });
    }
  }

  // Every kLanes-th byte of a block that is not full.
  static GPUCOMM_PROGRAM void join(const uint32_t* words, unsigned lane, unsigned count, std::byte* codes) {
    const auto code = [&](unsigned at) { return at < count ? words[at / 4] >> (8 * (at % 4)) & 15 : 0; };
    const unsigned half = (count + 1) / 2;
#pragma unroll 1
    for (unsigned at = lane; at < half; at += kLanes)
      store(codes + at, static_cast<uint8_t>(code(at) | code(at + half) << 4));
  }
};

using Int8 = Integers<8>;
using Int4 = Integers<4>;

}  // namespace gpucomm::cuda
