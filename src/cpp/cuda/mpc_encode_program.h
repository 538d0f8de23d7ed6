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
    from.fetch(i);
    const uint64_t words = counted(i);
    ex.each([&](unsigned lane) {
      if (lane == 0) store(i + 1 < rounds_of<Word>(piece) ? to.entry(i + 1) : to.slot, words);
    });
  }

  // Once these are summed up. One round needs no table, and may not have been measured.
  GPUCOMM_PROGRAM void write(size_t i) const {
    const size_t plain = piece.count * sizeof(Word);
    const bool one = rounds_of<Word>(piece) == 1;
    uint64_t bytes = one ? 0 : load<uint64_t>(to.slot);
    from.fetch(i);
    const uint64_t words = one || bytes < plain ? counted(i) : 0;
    if (one) bytes = coded_bytes<Word>(piece.count, words);
    if (bytes == plain)
      copy(i);
    else
      write(i, to.words(to.first(i)), words);
    ex.each([&](unsigned lane) {
      if (lane == 0 && one) store(to.slot, bytes);
    });
  }

 private:
  // How many words a round takes.
  GPUCOMM_PROGRAM uint64_t counted(size_t i) const {
    const unsigned some = elements_of<Word>(piece, i);
    ex.each([&](unsigned lane) { round.sums.at(lane) = has(lane, some) ? ones(mask(lane, some)) : 0; });
    round.sums.run(ex);
    return Round::groups(some) + round.sums.all();
  }

  // The elements as they are.
  GPUCOMM_PROGRAM void copy(size_t i) const {
    const unsigned some = elements_of<Word>(piece, i);
    std::byte* const out = to.slot + kHeader + i * Round::kElements * sizeof(Word);
    ex.each([&](unsigned lane) {
      for (unsigned k = lane; k < some; k += kThreads)
        store(out + k * sizeof(Word), round.words[Round::at(k)]);
    });
  }

  // Once it was measured.
  GPUCOMM_PROGRAM void write(size_t i, std::byte* out, uint64_t words) const {
    code(elements_of<Word>(piece, i));
    ex.each([&](unsigned lane) {
      for (uint64_t k = lane; k < words; k += kThreads) store(out + k * sizeof(Word), round.words[k]);
    });
  }

  // Elements to coded words, in place.
  GPUCOMM_PROGRAM void code(unsigned some) const {
    typename Exec::template Lanes<Coded> coded;
    ex.each([&](unsigned lane) {
      if (has(lane, some)) transform(lane, some, coded[lane]);
    });
    ex.each([&](unsigned lane) {
      if (has(lane, some)) place(lane, some, coded[lane]);
    });
  }

  GPUCOMM_PROGRAM static bool has(unsigned lane, unsigned some) { return lane * kGroup < some; }

  // A difference, each bit xor the one below: the bits of all make the words.
  GPUCOMM_PROGRAM Word difference(unsigned at, unsigned some) const {
    if (at >= some) return 0;
    const Word before = at >= piece.distance ? round.words[Round::at(at - piece.distance)] : 0;
    const Word less = round.words[Round::at(at)] - before;
    return less ^ less << 1;
  }
  // Which words are not zero.
  GPUCOMM_PROGRAM Word mask(unsigned lane, unsigned some) const {
    Word mask = 0;
#pragma unroll 8
    for (unsigned i = 0; i < kGroup; ++i) mask |= difference(lane * kGroup + i, some);
    return mask;
  }
  GPUCOMM_PROGRAM void transform(unsigned lane, unsigned some, Coded& coded) const {
    coded.mask = 0;
#pragma unroll
    for (unsigned i = 0; i < kGroup; ++i) {
      coded.words[i] = difference(lane * kGroup + i, some);
      coded.mask |= coded.words[i];
    }
    blocks::transpose(coded.words);
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
