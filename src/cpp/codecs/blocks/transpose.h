// The transpose of a square of bits: bit j of word i becomes bit i of word j. Its own inverse.
// Source: Warren, Hacker's Delight, 7-3: swap halves, then quarters, and so on.
#pragma once
#include "codecs/blocks/portable.h"

namespace gpucomm::blocks {

// From squares of 2 kHalf bits down. kHalf is known to the compiler, so that a GPU keeps `a` in registers.
template <int kHalf, class Word>
GPUCOMM_BLOCK void transpose_from(Word (&a)[8 * sizeof(Word)], Word mask) {
  for (int begin = 0; begin < static_cast<int>(8 * sizeof(Word)); begin += 2 * kHalf) {
    for (int i = begin; i < begin + kHalf; ++i) {
      const Word swapped = (a[i] >> kHalf ^ a[i + kHalf]) & mask;
      a[i + kHalf] ^= swapped;
      a[i] ^= swapped << kHalf;
    }
  }
  if constexpr (kHalf > 1) transpose_from<kHalf / 2>(a, mask ^ mask << kHalf / 2);
}

template <class Word>
GPUCOMM_BLOCK void transpose(Word (&a)[8 * sizeof(Word)]) {
  constexpr int kHalf = 4 * sizeof(Word);
  transpose_from<kHalf>(a, static_cast<Word>(~Word{0}) >> kHalf);
}

}  // namespace gpucomm::blocks
