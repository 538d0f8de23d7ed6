// Copies by warps.
#pragma once
#include "cuda/program.h"

namespace gpucomm::cuda {

inline constexpr unsigned kAtOnce = 4;  // per lane, so that so many loads are under way

// call(first, lane) for runs of kLanes x kAtOnce items; a lane has every kLanes-th.
template <class Exec, class Call>
GPUCOMM_PROGRAM void each_run(const Exec& ex, size_t count, const Call& call) {
  constexpr size_t kRun = kLanes * kAtOnce;
  for (size_t begin = ex.warp() * kRun; begin < count; begin += ex.warps() * kRun)
    ex.each([&](unsigned lane) { call(begin + lane); });
}

template <class Word, class Exec>
GPUCOMM_PROGRAM void copy_words(const Exec& ex, const std::byte* from, std::byte* to, size_t words) {
  each_run(ex, words, [&](size_t first) {
    Word values[kAtOnce];
#pragma unroll
    for (unsigned i = 0; i < kAtOnce; ++i)
      if (first + i * kLanes < words) values[i] = load<Word>(from + (first + i * kLanes) * sizeof(Word));
#pragma unroll
    for (unsigned i = 0; i < kAtOnce; ++i)
      if (first + i * kLanes < words) store(to + (first + i * kLanes) * sizeof(Word), values[i]);
  });
}

// `alignment` of both: 1, 2, 4, 8 or 16. What is no whole number of words goes byte by byte.
template <class Exec>
GPUCOMM_PROGRAM void copy_bytes(const Exec& ex, const std::byte* from, std::byte* to, size_t bytes,
                                unsigned alignment) {
  if (alignment == 16) copy_words<Words4>(ex, from, to, bytes / 16);
  if (alignment == 8) copy_words<uint64_t>(ex, from, to, bytes / 8);
  if (alignment == 4) copy_words<uint32_t>(ex, from, to, bytes / 4);
  if (alignment == 2) copy_words<uint16_t>(ex, from, to, bytes / 2);
  const size_t done = alignment > 1 ? bytes / alignment * alignment : 0;
  copy_words<uint8_t>(ex, from + done, to + done, bytes - done);
}

GPUCOMM_PROGRAM unsigned alignment_of(const void* at) {
  const auto place = reinterpret_cast<uintptr_t>(at) % 16;
  return place ? static_cast<unsigned>(place & -place) : 16;
}

// Wherever the two lie: what is before the first whole word of both goes by itself.
template <class Exec>
GPUCOMM_PROGRAM void copy_span(const Exec& ex, const std::byte* from, std::byte* to, size_t bytes) {
  const bool alike = (reinterpret_cast<uintptr_t>(from) - reinterpret_cast<uintptr_t>(to)) % 16 == 0;
  size_t head = alike ? -reinterpret_cast<uintptr_t>(to) % 16 : 0;
  if (head > bytes) head = bytes;
  copy_bytes(ex, from, to, head, 1);
  const unsigned a = alignment_of(from + head), b = alignment_of(to + head);
  copy_bytes(ex, from + head, to + head, bytes - head, a < b ? a : b);
}

}  // namespace gpucomm::cuda
