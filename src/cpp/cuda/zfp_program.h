// zfp:R: a lane codes a block of 4 elements in 4R bits; the wire is that of codecs/zfp.cpp. The 32 codes of a
// tile fill `bits` words of 32 bits, which are put together, and taken apart, in the memory of the thread
// block.
#pragma once
#include <cstdlib>

#include "codecs/blocks/zfp.h"
#include "cuda/blocks_program.h"
#include "cuda/zfp_tables.h"

namespace gpucomm::cuda {

// The bits of one block in the words of a tile, one after the other.
template <class Exec>
struct BitWriter {
  const Exec& ex;
  uint32_t* words;
  unsigned fill, left;
  uint64_t pending = 0;

  GPUCOMM_PROGRAM BitWriter(const Exec& ex, uint32_t* words, unsigned begin, unsigned bits)
      : ex(ex), words(words + begin / 32), fill(begin % 32), left(bits) {}

  GPUCOMM_PROGRAM void put(uint32_t code, unsigned length) {  // up to 16 bits, of which `left` go in
    if (length > left) length = left, code &= (1u << length) - 1;
    pending |= static_cast<uint64_t>(code) << fill;
    fill += length, left -= length;
    if (fill >= 32) flush(), fill -= 32, pending >>= 32;
  }
  GPUCOMM_PROGRAM void flush() { ex.or_into(*words++, static_cast<uint32_t>(pending)); }
};

struct BitReader {
  const uint32_t* words;
  unsigned have, left;
  uint64_t pending;

  GPUCOMM_PROGRAM BitReader(const uint32_t* words, unsigned begin, unsigned bits)
      : words(words + begin / 32 + 1),
        have(32 - begin % 32),
        left(bits),
        pending(words[begin / 32] >> begin % 32) {}

  // There are at least `count` bits to look at, up to 32; beyond the block's end they mean nothing.
  GPUCOMM_PROGRAM uint32_t peek(unsigned count) {
    if (have < count) pending |= static_cast<uint64_t>(*words++) << have, have += 32;
    return static_cast<uint32_t>(pending);
  }
  GPUCOMM_PROGRAM void skip(unsigned count) { pending >>= count, have -= count, left -= count; }
};

struct Zfp {
  static constexpr unsigned kTiles = 1, kHeaderBits = 9, kMostWords = 128;
  using Raw = Words4;
  struct Shared {
    ZfpTables tables;
    uint32_t words[kWarps][kMostWords + 1];  // a reader may look one word further
  };
  unsigned bits;  // of a block

  // The argument: the rate, in bits per element.
  static Zfp make(const char* argument) {
    return {static_cast<unsigned>(4 * std::strtod(argument, nullptr))};
  }

  // The words of a tile; behind the last tile of the message, to whole words of 64 bits.
  GPUCOMM_PROGRAM unsigned words(const Message& message, const Tile& tile) const {
    if ((tile.number + 1) * kTile < message.count) return bits;
    const size_t coded = ((message.count + 3) / 4 * bits + 63) / 64 * 2;
    return static_cast<unsigned>(coded - tile.number * bits);
  }

  template <bool kFull>
  GPUCOMM_PROGRAM Raw fetch(const Message& message, const Tile& tile, unsigned lane) const {
    const std::byte* at = message.bytes + tile.number * bits * 4;
    const unsigned count = words(message, tile);
    Raw raw = {};
    for (unsigned i = 0; i < 4; ++i)
      if (lane + kLanes * i < count) raw.at[i] = load<uint32_t>(at + 4 * (lane + kLanes * i));
    return raw;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM bool decode(const Exec& ex, Shared& shared, typename Exec::template Lanes<Raw>& raw,
                              const Tile&, typename Exec::template Lanes<Four>& x) const {
    uint32_t* const words = shared.words[ex.warp_in_block()];
    ex.each([&](unsigned lane) {
      for (unsigned i = 0; i < 4; ++i) words[lane + kLanes * i] = raw[lane].at[i];
      if (lane == 0) words[kMostWords] = 0;
    });
    ex.each(
        [&](unsigned lane) { decode_block(shared.tables, BitReader(words, lane * bits, bits), x[lane]); });
    return true;
  }

  static GPUCOMM_PROGRAM void decode_block(const ZfpTables& tables, BitReader reader, Four& x) {
    const uint32_t header = reader.peek(kHeaderBits);
    const uint32_t field = header >> 1 & 0xff;
    reader.skip(kHeaderBits);
    if (!(header & 1)) reader.left = 0;
    uint32_t q[4] = {}, n = 0;
#pragma unroll
    for (int eight = 3; eight >= 0; --eight) {  // planes at a time
      uint32_t planes = 0;
      for (int plane = 7; plane >= 0 && reader.left; --plane) {
        const unsigned left = reader.left < zfp::kLongest ? reader.left : zfp::kLongest;
        const uint32_t next = reader.peek(zfp::kLongest) & ((1u << left) - 1);
        const uint32_t entry = tables.decode[n << 8 | 1u << left | next];
        planes |= (entry & 15) << (4 * plane);
        n = entry >> 8;
        reader.skip(entry >> 4 & 15);
      }
      for (int i = 0; i < 4; ++i) q[i] |= gather8(planes >> i) << (8 * eight);
    }
    blocks::zfp::values(q, field, x.at);
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM void encode(const Exec& ex, Shared& shared, typename Exec::template Lanes<Four>& x,
                              const Tile& tile, const Message& message, Status* status) const {
    uint32_t* const words = shared.words[ex.warp_in_block()];
    typename Exec::template Lanes<uint32_t> most;
    ex.each([&](unsigned lane) {
      for (unsigned i = 0; i < 4; ++i) words[lane + kLanes * i] = 0;
      if (!kFull) pad(x[lane], tile, lane);
      most[lane] = largest_bits(x[lane]);
    });
    if (ex.max([&](unsigned lane) { return most[lane]; }) >= blocks::kInfinityBits)
      return refuse(ex, x, tile, status, [](uint32_t b) { return b >= blocks::kInfinityBits; });
    ex.each([&](unsigned lane) {
      if (most[lane])
        encode_block(shared.tables, x[lane], most[lane], BitWriter(ex, words, lane * bits, bits));
    });
    ex.each([&](unsigned lane) {
      std::byte* const at = message.bytes + tile.number * bits * 4;
      for (unsigned i = lane; i < this->words(message, tile); i += kLanes) store(at + 4 * i, words[i]);
    });
  }

  template <class Writer>
  static GPUCOMM_PROGRAM void encode_block(const ZfpTables& tables, const Four& x, uint32_t most,
                                           Writer writer) {
    uint32_t q[4], n = 0;
    blocks::zfp::coefficients(x.at, most, q);
    writer.put(((most >> 23) + 1) << 1 | 1, kHeaderBits);
#pragma unroll
    for (int eight = 3; eight >= 0; --eight) {  // planes at a time
      if (writer.left == 0) break;
      uint32_t planes = 0;
      for (int i = 0; i < 4; ++i) planes |= spread8(q[i] >> (8 * eight) & 0xff) << i;
      for (int two = 0; two < 4 && writer.left; ++two, planes <<= 8) {
        const uint32_t entry = tables.encode[n << 8 | planes >> 24];
        n = entry >> 24;
        writer.put(entry & 0xffff, entry >> 16 & 0xff);
      }
    }
    if (writer.fill) writer.flush();
  }

  // As zfp fills up the last block. A lane beyond it has nothing to code.
  static GPUCOMM_PROGRAM void pad(Four& x, const Tile& tile, unsigned lane) {
    const unsigned begin = lane * kPerLane;
    const unsigned some = tile.count > begin ? tile.count - begin : 0;
    if (some == 1) x.at[1] = x.at[0];
    if (some == 1 || some == 2) x.at[2] = x.at[1];
    if (some && some < kPerLane) x.at[3] = x.at[0];
  }

  // Bits 0 to 7 to bits 0, 4, ..., 28; and back.
  static GPUCOMM_PROGRAM uint32_t spread8(uint32_t x) {
    x = (x | x << 12) & 0x000f000f;
    x = (x | x << 6) & 0x03030303;
    return (x | x << 3) & 0x11111111;
  }
  static GPUCOMM_PROGRAM uint32_t gather8(uint32_t x) {
    x &= 0x11111111;
    x = (x | x >> 3) & 0x03030303;
    x = (x | x >> 6) & 0x000f000f;
    return (x | x >> 12) & 0xff;
  }
};

GPUCOMM_PROGRAM void prepare(Zfp::Shared& shared, unsigned thread, unsigned threads) {
  for (unsigned i = thread; i < kZfpEncodeEntries; i += threads)
    shared.tables.encode[i] = kZfpTables.encode[i];
  for (unsigned i = thread; i < kZfpDecodeEntries; i += threads)
    shared.tables.decode[i] = kZfpTables.decode[i];
}

}  // namespace gpucomm::cuda
