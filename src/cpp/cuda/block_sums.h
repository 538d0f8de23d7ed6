// Sums over the lanes of a thread block.
#pragma once
#include "cuda/residency.h"

namespace gpucomm::cuda {

struct BlockSums {
  static constexpr unsigned kChunk = 16, kChunks = kThreads / kChunk;

  uint64_t of[kThreads + kChunks];  // one free behind each chunk, or all chunks would begin in one bank
  uint64_t chunks[kChunks + 1];

  // A lane's own, put there before.
  GPUCOMM_PROGRAM uint64_t& at(unsigned lane) { return of[lane + lane / kChunk]; }
  GPUCOMM_PROGRAM uint64_t at(unsigned lane) const { return of[lane + lane / kChunk]; }

  template <class Exec>
  GPUCOMM_PROGRAM void run(const Exec& ex) {
    ex.each([&](unsigned lane) {
      for (unsigned i = 1; lane < kChunks && i < kChunk; ++i)
        at(lane * kChunk + i) += at(lane * kChunk + i - 1);
    });
    ex.each([&](unsigned lane) {
      if (lane == 0) chunks[0] = 0;
      for (unsigned i = 0; lane == 0 && i < kChunks; ++i)
        chunks[i + 1] = chunks[i] + at((i + 1) * kChunk - 1);
    });
  }

  // Once they have run: what the lanes before this one have, and all.
  GPUCOMM_PROGRAM uint64_t before(unsigned lane) const {
    return chunks[lane / kChunk] + (lane % kChunk ? at(lane - 1) : 0);
  }
  GPUCOMM_PROGRAM uint64_t all() const { return chunks[kChunks]; }
};

}  // namespace gpucomm::cuda
