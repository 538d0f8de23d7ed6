// Rounds of a message of mpc. The masks say where groups begin; each thread restores a group, and sums over
// the groups of a round make elements of differences.
#pragma once
#include "codecs/blocks/transpose.h"
#include "cuda/mpc_rounds.h"

namespace gpucomm::cuda {

// Rounds of a message.
template <class W, class E>
struct UnpackMpc {
  using Word = W;
  using Exec = E;
  using Round = MpcRound<Word>;
  static constexpr unsigned kGroup = Round::kGroup, kGroups = Round::kGroups;
  struct Group {
    Word words[kGroup];
  };

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;

  // Puts the elements of a round into round.words; false, and reported: the message is damaged.
  GPUCOMM_PROGRAM bool fetch(size_t i) const {
    const auto bytes = load<uint64_t>(piece.from);
    const size_t plain = piece.count * sizeof(Word), table = MpcLayout<Word>::table(piece.count);
    if (bytes > plain) return damaged(size_fault(bytes));
    if (bytes == plain) return load_round<Word>(ex, round, piece, piece.from + kHeader, i), true;
    if (bytes < table || (bytes - table) % sizeof(Word)) return damaged(place_fault(0));
    const MpcSlot<Word, const std::byte> in{piece.from, piece.count};
    const size_t words = (bytes - table) / sizeof(Word);
    return decode(i, in, in.first(i), i + 1 < rounds_of<Word>(piece) ? in.first(i + 1) : words, words);
  }

 private:
  GPUCOMM_PROGRAM bool damaged(Status fault) const {
    ex.each([&](unsigned lane) {
      if (lane == 0) ex.report(piece.status, fault);
    });
    return false;
  }

  // Coded words, which are those from `first` to `end` of `all`.
  GPUCOMM_PROGRAM bool decode(size_t i, const MpcSlot<Word, const std::byte>& in, uint64_t first,
                              uint64_t end, size_t all) const {
    const unsigned groups = Round::groups(elements_of<Word>(piece, i));
    const Status fault = place_fault(i * Round::kElements);
    if (first > end || end > all || end - first < groups || end - first > groups * (kGroup + 1))
      return damaged(fault);
    const auto words = static_cast<unsigned>(end - first);
    each_in_turn<false>(ex, round, words, [from = in.words(first)](size_t k, Word& word) {
      word = load<Word>(from + k * sizeof(Word));
    });
    ex.each([&](unsigned lane) { round.sums.at(lane) = lane < groups ? ones(round.words[lane]) : 0; });
    round.sums.run(ex);
    if (groups + round.sums.all() != words) return damaged(fault);
    typename Exec::template Lanes<Group> group;
    ex.each([&](unsigned lane) { restore(groups, lane, group[lane]); });
    if (piece.distance == 1) sum_up(group);
    ex.each([&](unsigned lane) {
      if (lane >= kGroups) return;
      const auto before = static_cast<Word>(piece.distance == 1 ? round.sums.before(lane) : 0);
#pragma unroll
      for (unsigned i = 0; i < kGroup; ++i) word(lane, i) = group[lane].words[i] + before;
    });
    if (piece.distance > 1) sum(groups);
    return true;
  }

  // Coded words to the differences of a group.
  GPUCOMM_PROGRAM void restore(unsigned groups, unsigned lane, Group& group) const {
    if (lane >= kGroups) return;
    const Word mask = lane < groups ? round.words[lane] : 0;
    Word last = 0;
    unsigned at = groups + static_cast<unsigned>(round.sums.before(lane));
#pragma unroll
    for (unsigned i = 0; i < kGroup; ++i) {
      if (mask >> i & 1) last ^= round.words[at++];
      group.words[i] = last;
    }
    blocks::transpose(group.words);
  }

  // Every element becomes the sum of itself and of all before it in its group, and round.sums those of
  // groups.
  template <class Groups>
  GPUCOMM_PROGRAM void sum_up(Groups& group) const {
    ex.each([&](unsigned lane) {
      round.sums.at(lane) = 0;
      if (lane >= kGroups) return;
      Word sum = 0;
#pragma unroll
      for (unsigned i = 0; i < kGroup; ++i) group[lane].words[i] = sum += group[lane].words[i];
      round.sums.at(lane) = sum;
    });
    round.sums.run(ex);
  }

  // Every element becomes the sum of itself and of all that are a multiple of `distance` before it, in place.
  // The last `distance` elements of a group are a sum for each remainder of the index: those are summed over
  // groups first.
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
      if (!lane || lane >= groups) return;
      for (unsigned i = 0, from = kGroup - d; i < kGroup - d; ++i) {  // a quotient would take longer than all
        word(lane, i) += word(lane - 1, from);
        if (++from == kGroup) from = kGroup - d;
      }
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
};

}  // namespace gpucomm::cuda
