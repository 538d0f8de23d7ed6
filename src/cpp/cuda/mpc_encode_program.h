// The encoder of mpc; the wire is that of codecs/mpc.cpp.
#pragma once
#include "cuda/mpc_groups.h"

namespace gpucomm::cuda {

template <class Word, class Exec>
struct EncodeMpc {
  using Round = MpcRound<Word>;
  static constexpr unsigned kGroup = Round::kGroup, kGroups = Round::kGroups;
  struct Coded {
    Word words[kGroup], mask;
  };

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;
  const std::byte* dense;
  std::byte* slot;

  GPUCOMM_PROGRAM void run() const {
    std::byte* const out = slot + 8;
    size_t written = 0;  // words of 32 bits behind the first byte
    const size_t all = piece.count * Round::kParts;
    ex.each([&](unsigned lane) {
      if (lane == 0) round.carry = kMpcCoded << 24;
    });
    for (size_t begin = 0; begin < piece.count; begin += Round::kElements) {
      const unsigned words = code(begin);
      if (written + words > (all * 4 - 1) / sizeof(Word) * Round::kParts) return raw(out, all);
      ex.each([&](unsigned lane) { write(out + 4 * written, words, lane); });
      written += words;
    }
    ex.each([&](unsigned lane) {
      if (lane == 0) finish(out, piece.count ? 1 + 4 * written : 0);
    });
  }

  GPUCOMM_PROGRAM void finish(std::byte* out, size_t bytes) const {
    if (bytes) store(out + bytes - 1, static_cast<uint8_t>(round.carry >> 24));
    store(slot, static_cast<uint64_t>(bytes));
  }

  // Codes a round into round.words; returns how many words of 32 bits.
  GPUCOMM_PROGRAM unsigned code(size_t begin) const {
    typename Exec::template Lanes<Coded> coded;
    ex.each([&](unsigned lane) { fetch(begin, lane); });
    ex.each([&](unsigned lane) {
      if (lane < kGroups) transform(begin, lane, coded[lane]);
    });
    ex.each([&](unsigned lane) {
      for (unsigned i = 1; lane < Round::kChunks && i < Round::kChunk; ++i)
        round.places[lane * Round::kChunk + i] += round.places[lane * Round::kChunk + i - 1];
    });
    ex.each([&](unsigned lane) {
      if (lane == 0) round.chunks[0] = 0;
      for (unsigned i = 0; lane == 0 && i < Round::kChunks; ++i)
        round.chunks[i + 1] = round.chunks[i] + round.places[(i + 1) * Round::kChunk - 1];
    });
    ex.each([&](unsigned lane) {
      if (lane < kGroups && begin + lane * kGroup < piece.count) place(lane, coded[lane]);
    });
    return round.chunks[Round::kChunks] * Round::kParts;
  }

  GPUCOMM_PROGRAM Word element(size_t index) const { return load<Word>(dense + index * sizeof(Word)); }

  GPUCOMM_PROGRAM void fetch(size_t begin, unsigned lane) const {
    for (unsigned i = lane; i < Round::kElements; i += kThreads)
      round.words[Round::at(i)] = begin + i < piece.count ? element(begin + i) : 0;
    if (lane < kMostDistance) round.history[lane] = begin ? element(begin - kMostDistance + lane) : 0;
  }

  // Differences, their bits transposed, and which words are not zero.
  GPUCOMM_PROGRAM void transform(size_t begin, unsigned lane, Coded& coded) const {
    const unsigned first = lane * kGroup;
#pragma unroll
    for (unsigned i = 0; i < kGroup; ++i) {
      const unsigned at = first + i;
      const Word before = at >= piece.distance ? round.words[Round::at(at - piece.distance)]
                                               : round.history[kMostDistance + at - piece.distance];
      coded.words[i] = begin + at < piece.count ? round.words[Round::at(at)] - before : 0;
    }
    blocks::transpose(coded.words);
    Word last = 0, mask = 0;
    unsigned used = 1;
#pragma unroll
    for (unsigned i = 0; i < kGroup; ++i) {
      const Word word = coded.words[i] ^ last;
      last = coded.words[i], coded.words[i] = word;
      mask |= static_cast<Word>(word != 0) << i;
      used += word != 0;
    }
    coded.mask = mask;
    round.places[lane] = begin + first < piece.count ? used : 0;
  }

  GPUCOMM_PROGRAM void place(unsigned lane, const Coded& coded) const {
    const unsigned before = lane % Round::kChunk ? round.places[lane - 1] : 0;
    unsigned at = round.chunks[lane / Round::kChunk] + before;
    round.words[at++] = coded.mask;
#pragma unroll
    for (unsigned i = 0; i < kGroup; ++i) {
      if (coded.words[i] != 0) round.words[at++] = coded.words[i];
    }
  }

  // What is before the first word is the lane's that writes it.
  GPUCOMM_PROGRAM void write(std::byte* to, unsigned words, unsigned lane) const {
    for (unsigned i = lane; i < words; i += kThreads)
      store(to + 4 * i, joined(i ? part(i - 1) : round.carry, part(i)));
    if (lane == 0) round.carry = part(words - 1);
  }
  GPUCOMM_PROGRAM uint32_t part(unsigned i) const {
    return static_cast<uint32_t>(round.words[i / Round::kParts] >> (32 * (i % Round::kParts)));
  }

  // The elements as they are.
  GPUCOMM_PROGRAM void raw(std::byte* out, size_t words) const {
    const auto word = [&](size_t i) { return load<uint32_t>(dense + 4 * i); };
    ex.each([&](unsigned lane) {
      for (size_t i = lane; i < words; i += kThreads)
        store(out + 4 * i, joined(i ? word(i - 1) : kMpcRaw << 24, word(i)));
      if (lane) return;
      round.carry = word(words - 1);
      finish(out, 1 + 4 * words);
    });
  }
};

}  // namespace gpucomm::cuda
