// What the codecs of blocks of 128 elements share: a tile is a block, with a scale behind all payload
// (codecs/block_codec.h). A lane's four elements are four bytes of payload.
#pragma once
#include "cuda/tiles_program.h"

namespace gpucomm::cuda {

// As loaded: to join the bytes is to wait for them, which must not be before all fetches are under way.
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
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (byte + i < count) codes |= static_cast<uint32_t>(load<uint8_t>(at + byte + i)) << (8 * i);
  }
  return codes;
}
template <bool kFull>
GPUCOMM_PROGRAM void store_codes(std::byte* at, unsigned byte, unsigned count, uint32_t codes) {
  if constexpr (kFull) {
    store(at + byte, codes);
  } else {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (byte + i < count) store(at + byte + i, static_cast<uint8_t>(codes >> (8 * i)));
  }
}

// As blocks::largest_bits(); of NaN any that is above Inf.
GPUCOMM_PROGRAM uint32_t largest_bits(const Four& x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float most = fabsf(x.at[0]);
  for (unsigned i = 1; i < kPerLane; ++i) asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(x.at[i])));
  return blocks::bits_of(most);
#else
  return blocks::largest_bits(x.at, kPerLane);
#endif
}

// Reports the first element of a tile, if any, whose `judged` is bad(bits of the magnitude). Only that one,
// which wins over the others anyway: the status is in the host's memory, and a whole array may be bad.
template <class Exec, class Bad>
GPUCOMM_PROGRAM void refuse(const Exec& ex, typename Exec::template Lanes<Four>& x,
                            typename Exec::template Lanes<Four>& judged, const Tile& tile, Status* status,
                            const Bad& bad) {
  typename Exec::template Lanes<uint32_t> left;  // elements from the lane's first bad one on
  typename Exec::template Lanes<float> value;
  ex.each([&](unsigned lane) {
    left[lane] = 0;
    for (unsigned i = kPerLane; i-- > 0;)
      if (bad(blocks::bits_of(judged[lane].at[i]) & blocks::kMagnitudeBits))
        left[lane] = kTile - lane * kPerLane - i, value[lane] = x[lane].at[i];
  });
  const uint32_t most = ex.max([&](unsigned lane) { return left[lane]; });
  ex.each([&](unsigned lane) {
    if (most && left[lane] == most)
      ex.report(status, element_fault(tile.index(0) + kTile - most, value[lane]));
  });
}

}  // namespace gpucomm::cuda
