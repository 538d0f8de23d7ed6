// mpc: what its encoder and its decoder share. A thread block works on a round at a time, in its own memory,
// a group of elements per thread.
#pragma once
#include "codecs/mpc_layout.h"
#include "cuda/residency.h"
#include "cuda/status.h"
#include "cuda/tiles.h"

namespace gpucomm::cuda {

template <class Word>
struct MpcRound {
  static constexpr unsigned kGroup = MpcLayout<Word>::kGroup, kElements = MpcLayout<Word>::kRound;
  static constexpr unsigned kGroups = kElements / kGroup;
  static_assert(kGroups <= kThreads);

  Word words[kElements + kGroups];  // elements, one left free behind each group, or coded words

  static GPUCOMM_PROGRAM unsigned groups(unsigned elements) { return (elements + kGroup - 1) / kGroup; }
  // Threads that go through a group each meet no two in one bank.
  static GPUCOMM_PROGRAM unsigned at(unsigned element) { return element + element / kGroup; }
};

struct MpcPiece {
  size_t count;
  unsigned distance;
  bool adds;
  int divisor;
  Status* status;
};

// Where the parts of a message lie in its slot.
template <class Word>
struct MpcSlot {
  std::byte* slot;
  size_t count;

  GPUCOMM_PROGRAM size_t rounds() const { return MpcLayout<Word>::rounds(count); }
  GPUCOMM_PROGRAM std::byte* entry(size_t round) const { return slot + kHeader + 8 * (round - 1); }
  // The first word of a round.
  GPUCOMM_PROGRAM uint64_t first(size_t round) const { return round ? load<uint64_t>(entry(round)) : 0; }
  GPUCOMM_PROGRAM std::byte* words(uint64_t first) const {
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
