// The decoder of mpc. The masks say where groups begin; each thread restores a group, and sums over the
// groups of a round make elements of differences.
#pragma once
#include "codecs/blocks/transpose.h"
#include "cuda/block_sums.h"
#include "cuda/identity_program.h"
#include "cuda/mpc_rounds.h"

namespace gpucomm::cuda {

template <class Word>
struct MpcDecoding : MpcRound<Word> {
  static constexpr unsigned kChunk = 16, kChunks = MpcRound<Word>::kGroups / kChunk;  // summed first

  Word bases[(kChunks + 1) * kMpcMostDistance];
  BlockSums sums;  // of the words of groups
};

// Form: how elements are added, Plain<float> or Plain<double>.
template <class Word, class Form, class Exec>
struct DecodeMpc {
  using Round = MpcDecoding<Word>;
  static constexpr unsigned kGroup = Round::kGroup, kGroups = Round::kGroups;
  struct Group {
    Word words[kGroup];
  };

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;
  std::byte* slot;  // is only read
  std::byte* dense;

  GPUCOMM_PROGRAM void run() const {
    const auto bytes = load<uint64_t>(slot);
    const size_t plain = piece.count * sizeof(Word), table = MpcLayout<Word>::table(piece.count);
    if (bytes > plain) return report(size_fault(bytes));
    const bool raw = bytes == plain;
    if (!raw && (bytes < table || (bytes - table) % sizeof(Word))) return report(place_fault(0));
    const MpcSlot<Word> in{slot, piece.count};
    const size_t words = (bytes - table) / sizeof(Word);
    for (size_t i = ex.block(); i < in.rounds(); i += ex.blocks()) {
      if (raw)
        copy(i * Round::kElements);
      else
        decode(i * Round::kElements, in, in.first(i), i + 1 < in.rounds() ? in.first(i + 1) : words, words);
    }
  }

  GPUCOMM_PROGRAM void report(Status fault) const {
    ex.each([&](unsigned lane) {
      if (lane == 0) ex.report(piece.status, fault);
    });
  }

  // A round of coded words, which are those from `first` to `end` of `all`.
  GPUCOMM_PROGRAM void decode(size_t begin, const MpcSlot<Word>& in, uint64_t first, uint64_t end,
                              size_t all) const {
    const size_t left = piece.count - begin;
    const unsigned groups = Round::groups(left < Round::kElements ? left : Round::kElements);
    if (first > end || end > all || end - first < groups || end - first > groups * (kGroup + 1))
      return report(place_fault(begin));
    const auto words = static_cast<unsigned>(end - first);
    ex.each([&](unsigned lane) {
      for (unsigned i = lane; i < words; i += kThreads)
        round.words[i] = load<Word>(in.words(first) + i * sizeof(Word));
    });
    ex.each([&](unsigned lane) { round.sums.at[lane] = lane < groups ? ones(round.words[lane]) : 0; });
    round.sums.run(ex);
    if (groups + round.sums.all() != words) return report(place_fault(begin));
    restore(groups);
    sum(groups);
    ex.each([&](unsigned lane) {
      for (size_t i = lane; i < Round::kElements && begin + i < piece.count; i += kThreads)
        put(begin + i, round.words[Round::at(static_cast<unsigned>(i))]);
    });
  }

  // Coded words to differences, in place.
  GPUCOMM_PROGRAM void restore(unsigned groups) const {
    typename Exec::template Lanes<Group> group;
    ex.each([&](unsigned lane) {
      if (lane >= kGroups) return;
      const Word mask = lane < groups ? round.words[lane] : 0;
      Word last = 0;
      unsigned at = groups + static_cast<unsigned>(round.sums.before(lane));
#pragma unroll
      for (unsigned i = 0; i < kGroup; ++i) {
        if (mask >> i & 1) last ^= round.words[at++];
        group[lane].words[i] = last;
      }
      blocks::transpose(group[lane].words);
    });
    ex.each([&](unsigned lane) {
      if (lane >= kGroups) return;
#pragma unroll
      for (unsigned i = 0; i < kGroup; ++i) round.words[Round::at(lane * kGroup + i)] = group[lane].words[i];
    });
  }

  // Every element becomes the sum of itself and of all that are a multiple of `distance` before it. The last
  // `distance` elements of a group are a sum for each remainder of the index: those are summed over groups
  // first.
  GPUCOMM_PROGRAM void sum(unsigned groups) const {
    const unsigned d = piece.distance;
    ex.each([&](unsigned lane) {
      for (unsigned i = d; lane < groups && i < kGroup; ++i) word(lane, i) += word(lane, i - d);
    });
    ex.each([&](unsigned lane) {
      for (unsigned job = lane; job < Round::kChunks * d; job += kThreads) sum_chunk(job / d, job % d);
    });
    ex.each([&](unsigned lane) {
      if (lane < d) sum_chunks(lane);
    });
    ex.each([&](unsigned lane) {
      for (unsigned i = kGroup - d; lane < groups && i < kGroup; ++i)
        word(lane, i) += round.bases[lane / Round::kChunk * kMpcMostDistance + remainder(lane, i)];
    });
    ex.each([&](unsigned lane) {
      for (unsigned i = 0; lane && lane < groups && i < kGroup - d; ++i)
        word(lane, i) += word(lane - 1, kGroup - d + i % d);
    });
  }

  GPUCOMM_PROGRAM Word& word(unsigned group, unsigned i) const {
    return round.words[Round::at(group * kGroup + i)];
  }
  GPUCOMM_PROGRAM unsigned remainder(unsigned group, unsigned i) const {
    return (group * kGroup + i) % piece.distance;
  }
  // The place of a remainder among the last elements of a group.
  GPUCOMM_PROGRAM unsigned last_of(unsigned group, unsigned r) const {
    const unsigned d = piece.distance, first = remainder(group, kGroup - d);
    return kGroup - d + (r + d - first) % d;
  }

  GPUCOMM_PROGRAM void sum_chunk(unsigned chunk, unsigned r) const {
    Word sum = 0;
    for (unsigned i = 0; i < Round::kChunk; ++i) {
      const unsigned group = chunk * Round::kChunk + i;
      Word& last = word(group, last_of(group, r));
      last = sum += last;
    }
  }
  GPUCOMM_PROGRAM void sum_chunks(unsigned r) const {
    Word sum = 0;
    for (unsigned chunk = 0; chunk < Round::kChunks; ++chunk) {
      round.bases[chunk * kMpcMostDistance + r] = sum;
      const unsigned group = (chunk + 1) * Round::kChunk - 1;
      sum += word(group, last_of(group, r));
    }
  }

  GPUCOMM_PROGRAM void put(size_t index, Word bits) const {
    using Stored = typename Form::Stored;
    std::byte* const at = dense + index * sizeof(Word);
    if (!piece.adds && piece.divisor <= 1) return store(at, bits);
    auto value = __builtin_bit_cast(Stored, bits);
    if (piece.adds) value = fold_two<Form, Sum>(load<Stored>(at), value);
    if (piece.divisor > 1) value = Form::store(Divide::apply(value, piece.divisor));
    store(at, value);
  }

  // Elements as they are.
  GPUCOMM_PROGRAM void copy(size_t begin) const {
    ex.each([&](unsigned lane) {
      for (size_t i = begin + lane; i < begin + Round::kElements && i < piece.count; i += kThreads)
        put(i, load<Word>(slot + kHeader + i * sizeof(Word)));
    });
  }
};

}  // namespace gpucomm::cuda
