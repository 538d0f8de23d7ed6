// zfp:R: a lane codes a block of 4 elements in 4R bits; the wire is that of codecs/zfp.cpp. The 32 codes of a
// tile fill `bits` words of 32 bits. At R = 8 each is one word, of its lane; else they are put together, and
// taken apart, in the memory of the thread block.
#pragma once
#include "codecs/zfp_setting.h"
#include "cuda/blocks_program.h"
#include "cuda/zfp_block.h"
#include "cuda/zfp_word.h"

namespace gpucomm::cuda {

// The words of a tile; behind the last tile of the message, to whole words of 64 bits.
GPUCOMM_PROGRAM unsigned zfp_words(const Message& message, const Tile& tile, unsigned bits) {
  if ((tile.number + 1) * kTile < message.count) return bits;
  const size_t coded = ((message.count + 3) / 4 * bits + 63) / 64 * 2;
  return static_cast<unsigned>(coded - tile.number * bits);
}

// As zfp fills up the last block. A lane beyond it has nothing to code.
GPUCOMM_PROGRAM void pad_zfp(Four& x, const Tile& tile, unsigned lane) {
  const unsigned begin = lane * kPerLane;
  const unsigned some = tile.count > begin ? tile.count - begin : 0;
  if (some == 1) x.at[1] = x.at[0];
  if (some == 1 || some == 2) x.at[2] = x.at[1];
  if (some && some < kPerLane) x.at[3] = x.at[0];
}

// What each lane's largest magnitude is.
template <bool kFull, class Exec>
GPUCOMM_PROGRAM void find_largest(const Exec& ex, typename Exec::template Lanes<Four>& x, const Tile& tile,
                                  typename Exec::template Lanes<uint32_t>& most) {
  ex.each([&](unsigned lane) {
    if (!kFull) pad_zfp(x[lane], tile, lane);
    most[lane] = largest_bits(x[lane]);
  });
}

// False, and reported, where an element is not finite.
template <class Exec>
GPUCOMM_PROGRAM bool all_finite(const Exec& ex, typename Exec::template Lanes<Four>& x, const Tile& tile,
                                Status* status, const typename Exec::template Lanes<uint32_t>& most) {
  if (!ex.any([&](unsigned lane) { return most[lane] >= blocks::kInfinityBits; })) return true;
  refuse(ex, x, x, tile, status, [](uint32_t magnitude) { return magnitude >= blocks::kInfinityBits; });
  return false;
}

// The part of a thread, as vectors.
template <class Tables>
GPUCOMM_PROGRAM void copy_table(Tables& to, const Tables& from, unsigned thread, unsigned threads) {
  static_assert(sizeof(Tables) % sizeof(Words4) == 0 && alignof(Tables) >= alignof(Words4));
  auto* const into = reinterpret_cast<Words4*>(&to);
  const auto* const out_of = reinterpret_cast<const Words4*>(&from);
  for (unsigned i = thread; i < sizeof(Tables) / sizeof(Words4); i += threads) into[i] = out_of[i];
}

struct ZfpWord {  // R = 8
  static constexpr unsigned kTiles = 4, kDecodeWarps = 16, kRecodeWarps = 32;
  static constexpr bool kStays = true;  // each thread block copies the tables first
  using Raw = uint32_t;
  using Shared = ZfpWordTables;
  using EncodeShared = ZfpEncodeTable;
  using DecodeShared = ZfpDecodeTable;
  static ZfpWord make(const char*) { return {}; }

  template <bool kFull>
  GPUCOMM_PROGRAM Raw fetch(const Message& message, const Tile& tile, unsigned lane) const {
    if (!kFull && lane >= zfp_words(message, tile, kWordBits)) return 0;
    return load<uint32_t>(message.bytes + tile.number * kTile + 4 * lane);
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM bool decode(const Exec& ex, DecodeShared& shared, typename Exec::template Lanes<Raw>& raw,
                              const Tile&, typename Exec::template Lanes<Four>& x) const {
    ex.each([&](unsigned lane) { decode_word(shared, raw[lane], x[lane]); });
    return true;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM void encode(const Exec& ex, EncodeShared& shared, typename Exec::template Lanes<Four>& x,
                              const Tile& tile, const Message& message, Status* status) const {
    typename Exec::template Lanes<uint32_t> most;
    find_largest<kFull>(ex, x, tile, most);
    if (!all_finite(ex, x, tile, status, most)) return;
    ex.each([&](unsigned lane) {
      if (!kFull && lane >= zfp_words(message, tile, kWordBits)) return;
      store(message.bytes + tile.number * kTile + 4 * lane, encode_word(shared, x[lane], most[lane]));
    });
  }

  // A lane's part of encode(), and of decode(), a sum with x and encode(), in a full tile. False where the
  // code is wrong, which is rare.
  static GPUCOMM_PROGRAM bool encode_quickly(EncodeShared& shared, const Four& x, const Tile& tile,
                                             unsigned lane, const Message& message) {
    uint32_t word;
    const bool right = encode_word_quickly(shared, x, largest_bits(x), word);
    store(message.bytes + tile.number * kTile + 4 * lane, word);
    return right;
  }
  static GPUCOMM_PROGRAM bool recode_quickly(Shared& shared, Kind kind, Raw raw, Four& x, const Tile& tile,
                                             unsigned lane, const Message& message) {
    const bool right = add_word(shared.decode, raw, x);
    return right & encode_quickly(shared.encode, rounded(kind, x), tile, lane, message);
  }
};

struct Zfp {
  static constexpr unsigned kTiles = 2, kMostWords = 128;
  static constexpr bool kStays = true;
  using Raw = Words4;
  struct Shared {
    ZfpTables tables;
    uint32_t words[kWarps][kMostWords + 1];  // a reader may look one word further
  };
  unsigned bits;  // of a block

  // The argument: the rate, in bits per element.
  static Zfp make(const char* argument) { return {parse_zfp(argument)}; }

  template <bool kFull>
  GPUCOMM_PROGRAM Raw fetch(const Message& message, const Tile& tile, unsigned lane) const {
    const std::byte* at = message.bytes + tile.number * bits * 4;
    const unsigned count = zfp_words(message, tile, bits);
    Raw raw = {};
    for (unsigned i = 0; i < 4; ++i)
      if (lane + kLanes * i < count) raw.at[i] = load<uint32_t>(at + 4 * (lane + kLanes * i));
    return raw;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM bool decode(const Exec& ex, Shared& shared, typename Exec::template Lanes<Raw>& raw,
                              const Tile&, typename Exec::template Lanes<Four>& x) const {
    uint32_t* const words = shared.words[ex.warp_in_block()];
    ex.each_together([&](unsigned lane) {
      for (unsigned i = 0; i < 4; ++i) words[lane + kLanes * i] = raw[lane].at[i];
      if (lane == 0) words[kMostWords] = 0;
    });
    ex.each_together(
        [&](unsigned lane) { decode_block(shared.tables, SharedReader(words, lane * bits, bits), x[lane]); });
    return true;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM void encode(const Exec& ex, Shared& shared, typename Exec::template Lanes<Four>& x,
                              const Tile& tile, const Message& message, Status* status) const {
    uint32_t* const words = shared.words[ex.warp_in_block()];
    typename Exec::template Lanes<uint32_t> most;
    ex.each_together([&](unsigned lane) {
      for (unsigned i = 0; i < 4; ++i) words[lane + kLanes * i] = 0;
    });
    find_largest<kFull>(ex, x, tile, most);
    if (!all_finite(ex, x, tile, status, most)) return;
    ex.each_together([&](unsigned lane) {
      if (most[lane] == 0) return;
      SharedWriter<Exec> writer(ex, words, lane * bits, bits);
      encode_block(shared.tables, x[lane], most[lane], writer);
      if (writer.fill) writer.flush();
    });
    ex.each_together([&](unsigned lane) {
      std::byte* const at = message.bytes + tile.number * bits * 4;
      for (unsigned i = lane; i < zfp_words(message, tile, bits); i += kLanes) store(at + 4 * i, words[i]);
    });
  }
};

GPUCOMM_PROGRAM void prepare(ZfpEncodeTable& table, unsigned thread, unsigned threads) {
  copy_table(table, kZfpEncodeTable, thread, threads);
}
GPUCOMM_PROGRAM void prepare(ZfpDecodeTable& table, unsigned thread, unsigned threads) {
  copy_table(table, kZfpDecodeTable, thread, threads);
}
GPUCOMM_PROGRAM void prepare(ZfpWordTables& tables, unsigned thread, unsigned threads) {
  prepare(tables.encode, thread, threads);
  prepare(tables.decode, thread, threads);
}
GPUCOMM_PROGRAM void prepare(Zfp::Shared& shared, unsigned thread, unsigned threads) {
  copy_table(shared.tables, kZfpTables, thread, threads);
}

// Whether ZfpWord codes at this rate.
inline bool fills_words(const char* rate) { return Zfp::make(rate).bits == kWordBits; }

}  // namespace gpucomm::cuda
