// What the codecs of blocks of 128 elements share: a tile is a block, with a scale behind all payload
// (codecs/block_codec.h). A lane's four elements are four bytes of payload.
#pragma once
#include "cuda/tiles_program.h"

namespace gpucomm::cuda {

// As loaded: to join the bytes is to wait for them, and a fetch must not wait before all others are under
// way.
template <unsigned kBytes>
struct BlockRaw {
  uint32_t codes;
  uint8_t scale[kBytes];
};

// At any address.
template <unsigned kBytes>
GPUCOMM_PROGRAM void load_scale(const std::byte* scales, size_t block, BlockRaw<kBytes>& raw) {
  for (unsigned i = 0; i < kBytes; ++i) raw.scale[i] = load<uint8_t>(scales + block * kBytes + i);
}
template <unsigned kBytes>
GPUCOMM_PROGRAM uint32_t scale_of(const BlockRaw<kBytes>& raw) {
  uint32_t scale = 0;
  for (unsigned i = 0; i < kBytes; ++i) scale |= static_cast<uint32_t>(raw.scale[i]) << (8 * i);
  return scale;
}
template <unsigned kBytes>
GPUCOMM_PROGRAM void store_scale(std::byte* scales, size_t block, uint32_t scale) {
  for (unsigned i = 0; i < kBytes; ++i)
    store(scales + block * kBytes + i, static_cast<uint8_t>(scale >> (8 * i)));
}

// The bytes of a lane, as one word; beyond `count` bytes of the tile, zeros.
template <bool kFull>
GPUCOMM_PROGRAM uint32_t load_codes(const std::byte* at, unsigned byte, unsigned count) {
  uint32_t codes = 0;
  if constexpr (kFull) {
    codes = load<uint32_t>(at + byte);
  } else {
    for (unsigned i = 0; i < 4 && byte + i < count; ++i)
      codes |= static_cast<uint32_t>(load<uint8_t>(at + byte + i)) << (8 * i);
  }
  return codes;
}
template <bool kFull>
GPUCOMM_PROGRAM void store_codes(std::byte* at, unsigned byte, unsigned count, uint32_t codes) {
  if constexpr (kFull) {
    store(at + byte, codes);
  } else {
    for (unsigned i = 0; i < 4 && byte + i < count; ++i)
      store(at + byte + i, static_cast<uint8_t>(codes >> (8 * i)));
  }
}

GPUCOMM_PROGRAM uint32_t largest_bits(const Four& x) { return blocks::largest_bits(x.at, kPerLane); }

// Reports a lane's elements for which bad(bits of the magnitude).
template <class Exec, class Bad>
GPUCOMM_PROGRAM void refuse(const Exec& ex, typename Exec::template Lanes<Four>& x, const Tile& tile,
                            Status* status, const Bad& bad) {
  ex.each([&](unsigned lane) {
    for (unsigned i = 0; i < kPerLane; ++i)
      if (bad(blocks::bits_of(x[lane].at[i]) & blocks::kMagnitudeBits))
        ex.report(status, element_fault(tile.index(lane) + i, x[lane].at[i]));
  });
}

}  // namespace gpucomm::cuda
