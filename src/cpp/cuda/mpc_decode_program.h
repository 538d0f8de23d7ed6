// The decoder of mpc. The masks, which say where groups begin, are followed by one thread; then each thread
// restores a group, and sums over all groups make elements of differences.
#pragma once
#include "cuda/identity_program.h"
#include "cuda/mpc_groups.h"

namespace gpucomm::cuda {

// Form: how elements are added, Plain<float> or Plain<double>.
template <class Word, class Form, class Exec>
struct DecodeMpc {
  using Round = MpcRound<Word>;
  static constexpr unsigned kGroup = Round::kGroup, kGroups = Round::kGroups;
  struct Group {
    Word words[kGroup];
  };

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;
  const std::byte* slot;
  std::byte* dense;

  GPUCOMM_PROGRAM void run() const {
    const auto bytes = load<uint64_t>(slot);
    const std::byte* const in = slot + 8;
    if (bytes > piece.most_bytes || (bytes == 0) != (piece.count == 0)) return report(size_fault(bytes));
    if (bytes == 0) return;
    const auto first = load<uint8_t>(in);
    if (first == kMpcRaw && bytes == piece.most_bytes) return raw(in, piece.count * Round::kParts);
    if (first != kMpcCoded || (bytes - 1) % sizeof(Word)) return report(place_fault(0));
    coded(in, (bytes - 1) / sizeof(Word));
  }

  GPUCOMM_PROGRAM void report(Status fault) const {
    ex.each([&](unsigned lane) {
      if (lane == 0) ex.report(piece.status, fault);
    });
  }

  GPUCOMM_PROGRAM void coded(const std::byte* in, size_t words) const {
    size_t taken = 0;
    ex.each([&](unsigned lane) {
      if (lane < kMostDistance) round.history[lane] = 0;
    });
    for (size_t begin = 0; begin < piece.count; begin += Round::kElements) {
      const size_t groups = (piece.count - begin + kGroup - 1) / kGroup;
      const unsigned some = groups < kGroups ? static_cast<unsigned>(groups) : kGroups;
      const size_t left = words - taken;
      const unsigned there =
          left < kGroups * (kGroup + 1) ? static_cast<unsigned>(left) : kGroups * (kGroup + 1);
      ex.each([&](unsigned lane) { fetch(in, taken, there, words, lane); });
      ex.each([&](unsigned lane) {
        if (lane == 0) follow(some, there);
      });
      if (round.damaged) return report(place_fault(begin));
      taken += round.chunks[0];
      restore(some);
      sum(begin, some);
      ex.each([&](unsigned lane) { write(begin, lane); });
      ex.each([&](unsigned lane) {
        if (lane < kMostDistance)
          round.history[lane] = round.words[Round::at(Round::kElements - kMostDistance + lane)];
      });
    }
    if (taken != words) report(place_fault(piece.count));
  }

  GPUCOMM_PROGRAM void fetch(const std::byte* in, size_t taken, unsigned there, size_t words,
                             unsigned lane) const {
    constexpr unsigned kParts = Round::kParts;
    for (unsigned i = lane; i < there; i += kThreads) {
      Word word = 0;
      for (unsigned p = 0; p < kParts; ++p)
        word |= static_cast<Word>(load_odd(in, (taken + i) * kParts + p, words * kParts)) << (32 * p);
      round.words[i] = word;
    }
  }

  GPUCOMM_PROGRAM static unsigned ones(Word word) {
#ifdef __CUDACC__
    return sizeof(Word) == 8 ? __popcll(word) : __popc(static_cast<uint32_t>(word));
#else
    return static_cast<unsigned>(__builtin_popcountll(word));
#endif
  }

  // Where the groups are, and, in chunks[0], where the next round is.
  GPUCOMM_PROGRAM void follow(unsigned groups, unsigned there) const {
    unsigned at = 0, group = 0;
    for (; group < groups && at < there; ++group) {
      round.places[group] = at;
      at += 1 + ones(round.words[at]);
    }
    round.chunks[0] = at;
    round.damaged = group < groups || at > there;
  }

  // Coded words to differences, in place.
  GPUCOMM_PROGRAM void restore(unsigned groups) const {
    typename Exec::template Lanes<Group> group;
    ex.each([&](unsigned lane) {
      if (lane >= kGroups) return;
      const unsigned place = lane < groups ? round.places[lane] : 0;
      const Word mask = lane < groups ? round.words[place] : 0;
      Word last = 0;
      unsigned at = place + 1;
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
  GPUCOMM_PROGRAM void sum(size_t begin, unsigned groups) const {
    const unsigned d = piece.distance, shift = static_cast<unsigned>(begin % d);
    ex.each([&](unsigned lane) {
      for (unsigned i = d; lane < groups && i < kGroup; ++i) word(lane, i) += word(lane, i - d);
    });
    ex.each([&](unsigned lane) {
      for (unsigned job = lane; job < Round::kChunks * d; job += kThreads) sum_chunk(job / d, job % d, shift);
    });
    ex.each([&](unsigned lane) {
      if (lane < d) sum_chunks(lane, shift);
    });
    ex.each([&](unsigned lane) {
      for (unsigned i = kGroup - d; lane < groups && i < kGroup; ++i)
        word(lane, i) += round.bases[lane / Round::kChunk * kMostDistance + remainder(lane, i, shift)];
    });
    ex.each([&](unsigned lane) {
      for (unsigned i = 0; lane < groups && i < kGroup - d; ++i)
        word(lane, i) += lane ? word(lane - 1, kGroup - d + i % d) : round.history[kMostDistance - d + i % d];
    });
  }

  GPUCOMM_PROGRAM Word& word(unsigned group, unsigned i) const {
    return round.words[Round::at(group * kGroup + i)];
  }
  GPUCOMM_PROGRAM unsigned remainder(unsigned group, unsigned i, unsigned shift) const {
    return (group * kGroup + i + shift) % piece.distance;
  }
  // The place of a remainder among the last elements of a group.
  GPUCOMM_PROGRAM unsigned last_of(unsigned group, unsigned r, unsigned shift) const {
    const unsigned d = piece.distance, first = remainder(group, kGroup - d, shift);
    return kGroup - d + (r + d - first) % d;
  }

  GPUCOMM_PROGRAM void sum_chunk(unsigned chunk, unsigned r, unsigned shift) const {
    Word sum = 0;
    for (unsigned i = 0; i < Round::kChunk; ++i) {
      const unsigned group = chunk * Round::kChunk + i;
      Word& last = word(group, last_of(group, r, shift));
      last = sum += last;
    }
  }
  GPUCOMM_PROGRAM void sum_chunks(unsigned r, unsigned shift) const {
    const unsigned d = piece.distance;
    // of the d elements before the round, the first has the remainder `shift`
    Word sum = round.history[kMostDistance - d + (r + d - shift) % d];
    for (unsigned chunk = 0; chunk < Round::kChunks; ++chunk) {
      round.bases[chunk * kMostDistance + r] = sum;
      const unsigned group = (chunk + 1) * Round::kChunk - 1;
      sum += word(group, last_of(group, r, shift));
    }
  }

  GPUCOMM_PROGRAM void write(size_t begin, unsigned lane) const {
    for (size_t i = lane; i < Round::kElements && begin + i < piece.count; i += kThreads)
      put(begin + i, round.words[Round::at(static_cast<unsigned>(i))]);
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

  GPUCOMM_PROGRAM void raw(const std::byte* in, size_t words) const {
    constexpr unsigned kParts = Round::kParts;
    ex.each([&](unsigned lane) {
      for (size_t i = lane; i < piece.count; i += kThreads) {
        Word bits = 0;
        for (unsigned p = 0; p < kParts; ++p)
          bits |= static_cast<Word>(load_odd(in, i * kParts + p, words)) << (32 * p);
        put(i, bits);
      }
    });
  }
};

}  // namespace gpucomm::cuda
