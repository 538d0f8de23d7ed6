// The encoder of mpc; the wire is that of codecs/mpc.cpp. Where a round's words lie follows from what all
// rounds before it take: so one kernel measures the rounds, one sums up, and one writes. What is measured
// lies where the slot keeps the sums: in its table and, of the last round, in its header.
#pragma once
#include "codecs/blocks/transpose.h"
#include "cuda/mpc_rounds.h"

namespace gpucomm::cuda {

// Rounds of elements.
template <class W, class E>
struct PackMpc {
  using Word = W;
  using Exec = E;
  using Round = MpcRound<Word>;

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;

  GPUCOMM_PROGRAM void fetch(size_t i) const { load_round<Word>(ex, round, piece, piece.dense, i); }
};

// Source: what puts the elements of a round into round.words, a PackMpc or an AddMpc.
template <class Source>
struct EncodeMpc {
  using Word = typename Source::Word;
  using Exec = typename Source::Exec;
  using Round = MpcRound<Word>;
  static constexpr unsigned kGroup = Round::kGroup;
  struct Coded {
    Word words[kGroup], mask;
  };

  const Source& from;
  const Exec& ex = from.ex;
  Round& round = from.round;
  const MpcPiece& piece = from.piece;
  const MpcSlot<Word, std::byte> to{piece.to_slot, piece.count};

  // How many words a round takes: where the table tells of those before the next round, and the last one's in
  // the header.
  GPUCOMM_PROGRAM void measure(size_t i) const {
    const unsigned some = elements_of<Word>(piece, i);
    from.fetch(i);
    typename Exec::template Lanes<Coded> coded;
    const uint64_t words = take_differences(some, coded);
    ex.each([&](unsigned lane) {
      if (lane == 0) store(i + 1 < rounds_of<Word>(piece) ? to.entry(i + 1) : to.slot, words);
    });
  }

  // Once these are summed up. One round needs no table, and may not have been measured.
  GPUCOMM_PROGRAM void write(size_t i) const {
    const size_t plain = piece.count * sizeof(Word);
    const bool one = rounds_of<Word>(piece) == 1;
    const unsigned some = elements_of<Word>(piece, i);
    uint64_t bytes = one ? 0 : load<uint64_t>(to.slot);
    unsigned words = 0;
    from.fetch(i);
    typename Exec::template Lanes<Coded> coded;
    if (bytes < plain) words = take_differences(some, coded);
    if (one) bytes = coded_bytes<Word>(piece.count, words);
    if (bytes == plain)
      copy(i);
    else
      write(some, coded, to.words(to.first(i)), words);
    ex.each([&](unsigned lane) {
      if (lane == 0 && one) store(to.slot, bytes);
    });
  }

 private:
  // Returns how many words the round takes.
  template <class Lanes>
  GPUCOMM_PROGRAM unsigned take_differences(unsigned some, Lanes& coded) const {
    ex.each([&](unsigned lane) {
      Coded& own = coded[lane];
      own.mask = 0;
      if (has(lane, some))
        each_difference(lane, some, [&](unsigned k, Word less) { own.words[k] = less, own.mask |= less; });
      round.sums.at(lane) = ones(own.mask);
    });
    round.sums.run(ex);
    return Round::groups(some) + static_cast<unsigned>(round.sums.all());
  }

  // The elements as they are.
  GPUCOMM_PROGRAM void copy(size_t i) const {
    std::byte* const out = to.slot + kHeader + i * Round::kElements * sizeof(Word);
    each_in_turn<true>(ex, round, elements_of<Word>(piece, i),
                       [&](size_t k, Word word) { store(out + k * sizeof(Word), word); });
  }

  template <class Lanes>
  GPUCOMM_PROGRAM void write(unsigned some, Lanes& coded, std::byte* out, unsigned words) const {
    ex.each([&](unsigned lane) {
      if (!has(lane, some)) return;
      blocks::transpose(coded[lane].words);
      place(lane, some, coded[lane]);
    });
    each_in_turn<false>(ex, round, words, [&](size_t k, Word word) { store(out + k * sizeof(Word), word); });
  }

  GPUCOMM_PROGRAM static bool has(unsigned lane, unsigned some) { return lane * kGroup < some; }

  // call(k, the difference) for each element of a group. A difference is given as each bit xor the one below;
  // the bits of all make the words.
  template <class Call>
  GPUCOMM_PROGRAM void each_difference(unsigned lane, unsigned some, const Call& call) const {
    const unsigned first = lane * kGroup;
    const auto crossed = [&](unsigned k, Word less) { return first + k < some ? less ^ less << 1 : 0; };
    if (piece.distance == 1) {
      const Word* const own = &round.words[Round::at(first)];
      Word before = lane ? round.words[Round::at(first - 1)] : 0;
#pragma unroll
      for (unsigned k = 0; k < kGroup; ++k) call(k, crossed(k, own[k] - before)), before = own[k];
    } else {
#pragma unroll
      for (unsigned k = 0; k < kGroup; ++k) call(k, crossed(k, less_than_before(first + k)));
    }
  }
  GPUCOMM_PROGRAM Word less_than_before(unsigned at) const {
    return round.words[Round::at(at)] -
           (at >= piece.distance ? round.words[Round::at(at - piece.distance)] : 0);
  }

  GPUCOMM_PROGRAM void place(unsigned lane, unsigned some, const Coded& coded) const {
    auto at = Round::groups(some) + static_cast<unsigned>(round.sums.before(lane));
    round.words[lane] = coded.mask;
#pragma unroll
    for (unsigned i = 0; i < kGroup; ++i) {
      if (coded.words[i] != 0) round.words[at++] = coded.words[i];
    }
  }
};

// Sums of what was measured, and the message's bytes; by one thread block.
template <class Word, class Exec>
struct SumUpMpc {
  const Exec& ex;
  BlockSums& sums;
  const MpcPiece& piece;

  GPUCOMM_PROGRAM void run() const {
    const MpcSlot<Word, std::byte> to{piece.to_slot, piece.count};
    const size_t entries = rounds_of<Word>(piece) - 1, each = (entries + kThreads - 1) / kThreads;
    const auto visit = [&](unsigned lane, auto call) {
#pragma unroll 8
      for (size_t i = lane * each; i < (lane + 1) * each && i < entries; ++i) call(to.entry(i + 1));
    };
    ex.each([&](unsigned lane) {
      uint64_t sum = 0;
      visit(lane, [&](std::byte* entry) { sum += load<uint64_t>(entry); });
      sums.at(lane) = sum;
    });
    sums.run(ex);
    ex.each([&](unsigned lane) {
      uint64_t sum = sums.before(lane);
      visit(lane, [&](std::byte* entry) { store(entry, sum += load<uint64_t>(entry)); });
      if (lane == 0) store(to.slot, coded_bytes<Word>(piece.count, sums.all() + load<uint64_t>(to.slot)));
    });
  }
};

}  // namespace gpucomm::cuda
