// The transpose of a square of bits: bit j of word i becomes bit i of word j. Its own inverse.
// Source: Warren, Hacker's Delight, 7-3: swap halves, then quarters, and so on.
#pragma once
#include "codecs/blocks/portable.h"

namespace gpucomm::blocks {

template <class Word>
GPUCOMM_BLOCK void transpose(Word (&a)[8 * sizeof(Word)]) {
  constexpr int kBits = 8 * sizeof(Word);
  Word mask = static_cast<Word>(~Word{0}) >> (kBits / 2);
  for (int half = kBits / 2; half; half /= 2, mask ^= mask << half) {
    for (int begin = 0; begin < kBits; begin += 2 * half) {
      for (int i = begin; i < begin + half; ++i) {
        const Word swapped = (a[i] >> half ^ a[i + half]) & mask;
        a[i + half] ^= swapped;
        a[i] ^= swapped << half;
      }
    }
  }
}

}  // namespace gpucomm::blocks
