// The encoder of mpc; the wire is that of codecs/mpc.cpp. Where a round's words lie follows from what all
// rounds before it take: so one kernel measures the rounds, one sums up, and one writes. What is measured
// lies where the slot keeps the sums: in its table and, of the last round, in its header.
#pragma once
#include "codecs/blocks/transpose.h"
#include "cuda/block_sums.h"
#include "cuda/mpc_rounds.h"

namespace gpucomm::cuda {

template <class Word>
struct MpcCoding : MpcRound<Word> {
  BlockSums sums;
};

// A round's elements, coded.
template <class Word, class Exec>
struct CodeMpc {
  using Round = MpcCoding<Word>;
  static constexpr unsigned kGroup = Round::kGroup, kGroups = Round::kGroups;
  struct Coded {
    Word words[kGroup], mask;
  };

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;
  const std::byte* dense;

  // The elements of a round.
  GPUCOMM_PROGRAM unsigned count(size_t begin) const {
    const size_t left = piece.count - begin;
    return left < Round::kElements ? static_cast<unsigned>(left) : Round::kElements;
  }

  // Fetches a round; returns how many words it takes.
  GPUCOMM_PROGRAM size_t measure(size_t begin) const {
    const unsigned some = count(begin);
    ex.each([&](unsigned lane) {
      for (unsigned i = lane; i < Round::kElements; i += kThreads)
        round.words[Round::at(i)] = i < some ? load<Word>(dense + (begin + i) * sizeof(Word)) : 0;
    });
    ex.each([&](unsigned lane) { round.sums.at[lane] = has(lane, some) ? ones(mask(lane, some)) : 0; });
    round.sums.run(ex);
    return Round::groups(some) + round.sums.all();
  }

  // Once it was measured: puts the coded words into round.words.
  GPUCOMM_PROGRAM void code(size_t begin) const {
    const unsigned some = count(begin);
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

// How many words each round takes: where the table tells of those before the next round, and the last one's
// in the header.
template <class Word, class Exec>
struct MeasureMpc {
  const Exec& ex;
  MpcCoding<Word>& round;
  const MpcPiece& piece;
  const std::byte* dense;
  std::byte* slot;

  GPUCOMM_PROGRAM void run() const {
    const CodeMpc<Word, Exec> code{ex, round, piece, dense};
    const MpcSlot<Word> in{slot, piece.count};
    for (size_t i = ex.block(); i < in.rounds(); i += ex.blocks()) {
      const size_t words = code.measure(i * MpcLayout<Word>::kRound);
      ex.each([&](unsigned lane) {
        if (lane == 0) store<uint64_t>(i + 1 < in.rounds() ? in.entry(i + 1) : slot, words);
      });
    }
  }
};

// Sums of these, and the message's bytes; by one thread block.
template <class Word, class Exec>
struct SumUpMpc {
  const Exec& ex;
  BlockSums& sums;
  const MpcPiece& piece;
  std::byte* slot;

  GPUCOMM_PROGRAM void run() const {
    const MpcSlot<Word> in{slot, piece.count};
    const size_t entries = in.rounds() - 1, each = (entries + kThreads - 1) / kThreads;
    const auto visit = [&](unsigned lane, auto call) {
      for (size_t i = lane * each; i < (lane + 1) * each && i < entries; ++i) call(in.entry(i + 1));
    };
    ex.each([&](unsigned lane) {
      uint64_t sum = 0;
      visit(lane, [&](std::byte* entry) { sum += load<uint64_t>(entry); });
      sums.at[lane] = sum;
    });
    sums.run(ex);
    ex.each([&](unsigned lane) {
      uint64_t sum = sums.before(lane);
      visit(lane, [&](std::byte* entry) { store(entry, sum += load<uint64_t>(entry)); });
      if (lane == 0) store(slot, coded_bytes<Word>(piece.count, sums.all() + load<uint64_t>(slot)));
    });
  }
};

template <class Word, class Exec>
struct WriteMpc {
  const Exec& ex;
  MpcCoding<Word>& round;
  const MpcPiece& piece;
  const std::byte* dense;
  std::byte* slot;

  GPUCOMM_PROGRAM void run() const {
    const CodeMpc<Word, Exec> code{ex, round, piece, dense};
    const MpcSlot<Word> in{slot, piece.count};
    if (in.rounds() <= 1) return write_all(code, in);
    const bool raw = load<uint64_t>(slot) == piece.count * sizeof(Word);
    for (size_t i = ex.block(); i < in.rounds(); i += ex.blocks()) {
      const size_t begin = i * MpcLayout<Word>::kRound;
      if (raw)
        copy(begin);
      else
        write(code, begin, in.words(in.first(i)), code.measure(begin));
    }
  }

  // One round needs no table.
  GPUCOMM_PROGRAM void write_all(const CodeMpc<Word, Exec>& code, const MpcSlot<Word>& in) const {
    const size_t words = code.measure(0), bytes = coded_bytes<Word>(piece.count, words);
    if (bytes == piece.count * sizeof(Word))
      copy(0);
    else
      write(code, 0, in.words(0), words);
    ex.each([&](unsigned lane) {
      if (lane == 0) store<uint64_t>(slot, bytes);
    });
  }

  GPUCOMM_PROGRAM void write(const CodeMpc<Word, Exec>& code, size_t begin, std::byte* to,
                             size_t words) const {
    code.code(begin);
    ex.each([&](unsigned lane) {
      for (size_t i = lane; i < words; i += kThreads) store(to + i * sizeof(Word), round.words[i]);
    });
  }

  // The elements as they are.
  GPUCOMM_PROGRAM void copy(size_t begin) const {
    ex.each([&](unsigned lane) {
      for (size_t i = begin + lane; i < begin + MpcLayout<Word>::kRound && i < piece.count; i += kThreads)
        store(slot + kHeader + i * sizeof(Word), load<Word>(dense + i * sizeof(Word)));
    });
  }
};

}  // namespace gpucomm::cuda
