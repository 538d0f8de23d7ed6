// mpc: what its encoder and its decoder share. One thread block works through a message in rounds, a group of
// elements per thread: where a group lies follows from all before it. Rounds of 32 KiB in the memory of the
// thread block.
#pragma once
#include "codecs/blocks/transpose.h"
#include "cuda/residency.h"
#include "cuda/status.h"

namespace gpucomm::cuda {

inline constexpr unsigned kMpcRaw = 0, kMpcCoded = 1;  // the first byte
inline constexpr unsigned kMostDistance = 32;

template <class Word>
struct MpcRound {
  static constexpr unsigned kGroup = 8 * sizeof(Word);                       // elements
  static constexpr unsigned kGroups = (32 << 10) / (kGroup * sizeof(Word));  // of a round
  static constexpr unsigned kElements = kGroup * kGroups;
  static constexpr unsigned kChunk = 16, kChunks = kGroups / kChunk;  // groups that are summed first
  static constexpr unsigned kParts = sizeof(Word) / 4;                // words of 32 bits

  Word words[kElements + kGroups];  // elements, one left free behind each group, or coded words
  Word history[kMostDistance];      // the elements before the round
  Word bases[(kChunks + 1) * kMostDistance];
  uint32_t places[kGroups];  // of groups among the coded words
  uint32_t chunks[kChunks + 1];
  uint32_t carry;  // the 4 bytes before those to be written
  uint32_t damaged;

  // Threads that go through a group each meet no two in one bank.
  static GPUCOMM_PROGRAM unsigned at(unsigned element) { return element + element / kGroup; }
};

struct MpcPiece {
  size_t count, most_bytes;
  unsigned distance;
  bool adds;
  int divisor;
  Status* status;
};

// Words of 32 bits of a message lie one byte behind multiples of four.
GPUCOMM_PROGRAM uint32_t joined(uint32_t before, uint32_t word) { return before >> 24 | word << 8; }
GPUCOMM_PROGRAM uint32_t load_odd(const std::byte* bytes, size_t index, size_t count) {
  const auto low = load<uint32_t>(bytes + 4 * index);
  const std::byte* behind = bytes + 4 * (index + 1);
  const uint32_t high = index + 1 < count ? load<uint32_t>(behind) : load<uint8_t>(behind);
  return low >> 8 | high << 24;
}

}  // namespace gpucomm::cuda
