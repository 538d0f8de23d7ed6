// mpc: what its encoder and its decoder share. A thread block works on a round at a time, in its own memory,
// a group of elements per thread.
#pragma once
#include "codecs/mpc_layout.h"
#include "cuda/block_sums.h"
#include "cuda/status.h"
#include "cuda/tiles.h"

namespace gpucomm::cuda {

template <class W>
struct MpcRound {
  using Word = W;
  static constexpr unsigned kGroup = MpcLayout<Word>::kGroup, kElements = MpcLayout<Word>::kRound;
  static constexpr unsigned kGroups = kElements / kGroup, kMost = kElements + kGroups;  // words
  static constexpr unsigned kChunk = 16, kChunks = kGroups / kChunk;  // groups that are summed first
  static_assert(kGroups <= kThreads && kElements % kThreads == 0 && kThreads % kGroup == 0);

  Word words[kMost];  // elements, one left free behind each group, or coded words
  Word bases[(kChunks + 1) * kMpcMostDistance];
  BlockSums sums;  // of the words of groups

  static GPUCOMM_PROGRAM unsigned groups(unsigned elements) { return (elements + kGroup - 1) / kGroup; }
  // Threads that go through a group each meet no two in one bank.
  static GPUCOMM_PROGRAM unsigned at(unsigned element) { return element + element / kGroup; }
};

// As a Job; an own operand is `dense`.
struct MpcPiece {
  size_t count;
  const std::byte *dense, *from;
  std::byte *to_dense, *to_slot;
  unsigned distance;
  int divisor;
  bool adds;
  Status* status;
};

// One of an empty piece too. The host asks as well.
template <class Word>
GPUCOMM_BLOCK size_t rounds_of(const MpcPiece& piece) {
  const size_t rounds = MpcLayout<Word>::rounds(piece.count);
  return rounds ? rounds : 1;
}

// The elements of a round.
template <class Word>
GPUCOMM_PROGRAM unsigned elements_of(const MpcPiece& piece, size_t round) {
  constexpr unsigned kElements = MpcLayout<Word>::kRound;
  const size_t left = piece.count - round * kElements;
  return left < kElements ? static_cast<unsigned>(left) : kElements;
}

// call(k, the word) for the first words of a round, or for its first elements, in the order in which they
// lie.
template <bool kElements, class Word, class Exec, class Call>
GPUCOMM_PROGRAM void each_in_turn(const Exec& ex, MpcRound<Word>& round, unsigned some, const Call& call) {
  using Round = MpcRound<Word>;
  constexpr auto place = [](unsigned k) { return kElements ? Round::at(k) : k; };
  ex.each([&](unsigned lane) {
    Word* const own = &round.words[place(lane)];
    const int left = static_cast<int>(some) - static_cast<int>(lane);
#pragma unroll 8
    for (int begin = 0; begin < (kElements ? Round::kElements : Round::kMost); begin += kThreads)
      if (begin < left) call(size_t{lane} + begin, own[place(begin)]);
  });
}

// Puts elements as they are into round.words: those of a round of `from`.
template <class Word, class Exec>
GPUCOMM_PROGRAM void load_round(const Exec& ex, MpcRound<Word>& round, const MpcPiece& piece,
                                const std::byte* from, size_t i) {
  from += i * MpcRound<Word>::kElements * sizeof(Word);
  each_in_turn<true>(ex, round, elements_of<Word>(piece, i),
                     [&](size_t k, Word& word) { word = load<Word>(from + k * sizeof(Word)); });
}

// Where the parts of a message lie in its slot. Byte: std::byte, const where it is only read.
template <class Word, class Byte>
struct MpcSlot {
  Byte* slot;
  size_t count;

  GPUCOMM_PROGRAM Byte* entry(size_t round) const { return slot + kHeader + 8 * (round - 1); }
  // The first word of a round.
  GPUCOMM_PROGRAM uint64_t first(size_t round) const { return round ? load<uint64_t>(entry(round)) : 0; }
  GPUCOMM_PROGRAM Byte* words(uint64_t first) const {
    return slot + kHeader + MpcLayout<Word>::table(count) + first * sizeof(Word);
  }
};

// Of a message of so many words.
template <class Word>
GPUCOMM_PROGRAM uint64_t coded_bytes(size_t count, uint64_t words) {
  const uint64_t bytes = MpcLayout<Word>::table(count) + words * sizeof(Word), plain = count * sizeof(Word);
  return bytes < plain ? bytes : plain;
}

template <class Word>
GPUCOMM_PROGRAM unsigned ones(Word word) {
#ifdef __CUDACC__
  return sizeof(Word) == 8 ? __popcll(word) : __popc(static_cast<uint32_t>(word));
#else
  return static_cast<unsigned>(__builtin_popcountll(word));
#endif
}

}  // namespace gpucomm::cuda
