// Where the parts of a message of mpc lie. Word: the unsigned integer of an element's size.
#pragma once
#include <cstddef>

#include "codecs/blocks/portable.h"

namespace gpucomm {

inline constexpr unsigned kMpcMostDistance = 32;

template <class Word>
struct MpcLayout {
  static constexpr unsigned kGroup = 8 * sizeof(Word);           // elements that are coded together
  static constexpr unsigned kRound = (32 << 10) / sizeof(Word);  // elements that are coded apart from others

  static GPUCOMM_BLOCK size_t rounds(size_t count) { return (count + kRound - 1) / kRound; }
  // Bytes before the coded words.
  static GPUCOMM_BLOCK size_t table(size_t count) { return count ? 8 * (rounds(count) - 1) : 0; }
};

}  // namespace gpucomm
