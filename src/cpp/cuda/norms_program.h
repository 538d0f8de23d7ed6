// Sums of squares of codecs/norms.h as kNormParts warps make them: warp p adds up runs p, p + kNormParts, ...
// of 1024 elements, each lane four of every tile, then its lanes pairwise. The sums' order is the same on
// every device and in any order of warps.
#pragma once
#include "codecs/norms.h"
#include "cuda/dense.h"
#include "devices/device.h"

namespace gpucomm::cuda {

// A run is a block of the largest size.
inline constexpr unsigned kRunTiles = (1u << (kBlockSizes - 1)) / kTile;

struct SquaresArguments {
  Dense x, became;  // became.at is null where x itself is squared
  double times;
  unsigned blocks;
  std::byte* parts;  // kNormParts of NormSums
};

inline SquaresArguments arguments_of(const Squared& of, std::byte* parts) {
  return {dense_of(of.dtype, of.x, of.count), dense_of(of.dtype, of.became, of.count),
          static_cast<double>(of.times), of.blocks | 1, parts};
}

// What a lane has added up.
struct OwnSums {
  double squares[kBlockSizes];
  uint32_t largest;  // bits
};

// So many times the square of a magnitude; 0 times of Inf too.
GPUCOMM_PROGRAM double squares_of(uint32_t magnitude, unsigned times) {
  const double value = blocks::float_of(magnitude);
  return times ? value * value * times : 0;
}

template <bool kFull>
inline constexpr Access access = kFull ? Access::as_one : Access::some;

// Of the four elements of a lane those that are there.
template <bool kFull>
GPUCOMM_PROGRAM unsigned own_count(size_t count, size_t index) {
  if (kFull) return kPerLane;
  return index >= count ? 0 : count - index < kPerLane ? static_cast<unsigned>(count - index) : kPerLane;
}

template <class Exec>
struct Squares {
  template <class T>
  using Lanes = typename Exec::template Lanes<T>;
  const Exec& ex;
  const SquaresArguments& of;

  GPUCOMM_PROGRAM void run() const {
    constexpr size_t kRun = kRunTiles * kTile;
    if (ex.warp() * kRun >= of.x.count) return;
    Lanes<OwnSums> own;
    ex.each([&](unsigned lane) { own[lane] = {}; });
    const bool aligned = of.x.aligned && (!of.became.at || of.became.aligned);
    for (size_t begin = ex.warp() * kRun; begin < of.x.count; begin += kNormParts * kRun) {
      const bool full = aligned && of.x.count - begin >= kRun;
      if (of.became.at)
        full ? add_lost<true>(own, begin) : add_lost<false>(own, begin);
      else
        full ? add<true>(own, begin) : add<false>(own, begin);
    }
    finish(own);
  }

  static GPUCOMM_PROGRAM size_t index(size_t begin, unsigned tile, unsigned lane) {
    return begin + tile * kTile + lane * kPerLane;
  }

  template <bool kFull>
  GPUCOMM_PROGRAM void add_lost(Lanes<OwnSums>& own, size_t begin) const {
    constexpr unsigned kTogether = 4;  // tiles whose loads are under way together
#pragma unroll 1
    for (unsigned first = 0; first < kRunTiles; first += kTogether)
      ex.each([&](unsigned lane) {
        Words4 was[kTogether], is[kTogether];
#pragma unroll
        for (unsigned t = 0; t < kTogether; ++t) {
          was[t] = fetch<access<kFull>>(of.x, index(begin, first + t, lane));
          is[t] = fetch<access<kFull>>(of.became, index(begin, first + t, lane));
        }
#pragma unroll
        for (unsigned t = 0; t < kTogether; ++t) {
          const Four x = widen(of.x.kind, was[t]), became = widen(of.x.kind, is[t]);
#pragma unroll
          for (unsigned i = 0; i < kPerLane; ++i) {
            const uint32_t magnitude = blocks::bits_of(x.at[i]) & blocks::kMagnitudeBits;
            const double gone = of.times * (double{became.at[i]} - double{x.at[i]});
            if (magnitude < blocks::kInfinityBits) own[lane].squares[0] += gone * gone;
          }
        }
      });
  }

  // A lane adds, for each of its own elements, the square of its block's largest magnitude.
  template <bool kFull>
  GPUCOMM_PROGRAM void add(Lanes<OwnSums>& own, size_t begin) const {
    Lanes<uint32_t> most[kRunTiles];
    ex.each([&](unsigned lane) {
      Words4 raw[kRunTiles];
#pragma unroll
      for (unsigned t = 0; t < kRunTiles; ++t) raw[t] = fetch<access<kFull>>(of.x, index(begin, t, lane));
#pragma unroll
      for (unsigned t = 0; t < kRunTiles; ++t)
        most[t][lane] = four<kFull>(own[lane], widen(of.x.kind, raw[t]), index(begin, t, lane));
    });
#pragma unroll
    for (unsigned size = 3; size < 8; ++size)
      if (of.blocks >> size) across<kFull>(own, most, size, begin);
#pragma unroll
    for (unsigned size = 8; size < kBlockSizes; ++size)
      if (of.blocks >> size) tiles<kFull>(own, most, size, begin);
  }

  GPUCOMM_PROGRAM bool wanted(unsigned size) const { return of.blocks >> size & 1; }

  // Returns the largest magnitude of the four.
  template <bool kFull>
  GPUCOMM_PROGRAM uint32_t four(OwnSums& own, const Four& x, size_t first) const {
    uint32_t bits[kPerLane];
#pragma unroll
    for (unsigned i = 0; i < kPerLane; ++i) {
      bits[i] = blocks::bits_of(x.at[i]) & blocks::kMagnitudeBits;
      own.squares[0] += squares_of(bits[i], 1);
    }
    const unsigned count = own_count<kFull>(of.x.count, first);
    const uint32_t low = greater(bits[0], bits[1]), high = greater(bits[2], bits[3]),
                   most = greater(low, high);
    if (wanted(1)) {
      const unsigned in_low = count < 2 ? count : 2;
      own.squares[1] += squares_of(low, in_low) + squares_of(high, count - in_low);
    }
    if (wanted(2)) own.squares[2] += squares_of(most, count);
    own.largest = greater(own.largest, most);
    return most;
  }

  static GPUCOMM_PROGRAM uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

  // Blocks of 2^size elements within a tile: from those half as large, of another lane.
  template <bool kFull>
  GPUCOMM_PROGRAM void across(Lanes<OwnSums>& own, Lanes<uint32_t> (&most)[kRunTiles], unsigned size,
                              size_t begin) const {
    Lanes<uint32_t> before[kRunTiles];
    ex.each([&](unsigned lane) {
#pragma unroll
      for (unsigned t = 0; t < kRunTiles; ++t) before[t][lane] = most[t][lane];
    });
    ex.each([&](unsigned lane) {
#pragma unroll
      for (unsigned t = 0; t < kRunTiles; ++t) {
        most[t][lane] = greater(before[t][lane], ex.other(before[t], lane, 1u << (size - 3)));
        if (wanted(size))
          own[lane].squares[size] +=
              squares_of(most[t][lane], own_count<kFull>(of.x.count, index(begin, t, lane)));
      }
    });
  }

  // Blocks of several tiles: afterwards each of their tiles has the largest of all.
  template <bool kFull>
  GPUCOMM_PROGRAM void tiles(Lanes<OwnSums>& own, Lanes<uint32_t> (&most)[kRunTiles], unsigned size,
                             size_t begin) const {
    const unsigned half = 1u << (size - 8);  // tiles
    ex.each([&](unsigned lane) {
#pragma unroll
      for (unsigned t = 0; t < kRunTiles; ++t)
        if (!(t & half)) most[t][lane] = most[t + half][lane] = greater(most[t][lane], most[t + half][lane]);
      if (!wanted(size)) return;
#pragma unroll
      for (unsigned t = 0; t < kRunTiles; ++t)
        own[lane].squares[size] +=
            squares_of(most[t][lane], own_count<kFull>(of.x.count, index(begin, t, lane)));
    });
  }

  GPUCOMM_PROGRAM void finish(Lanes<OwnSums>& own) const {
    std::byte* const part = of.parts + ex.warp() * sizeof(NormSums);
#pragma unroll
    for (unsigned size = 0; size < kBlockSizes; ++size)
      if (wanted(size)) add_lanes(own, size, part + size * sizeof(double));
    const uint32_t most = ex.max([&](unsigned lane) { return own[lane].largest; });
    ex.each([&](unsigned lane) {
      if (lane) return;
      std::byte* const at = part + offsetof(NormSums, largest);
      const double value = blocks::float_of(most), stored = load<double>(at);
      if (stored == stored && !(value <= stored)) store(at, value);  // NaN stays
    });
  }

  GPUCOMM_PROGRAM void add_lanes(Lanes<OwnSums>& own, unsigned size, std::byte* at) const {
    Lanes<double> sum, before;
    ex.each([&](unsigned lane) { sum[lane] = own[lane].squares[size]; });
#pragma unroll
    for (unsigned step = kLanes / 2; step; step /= 2) {
      ex.each([&](unsigned lane) { before[lane] = sum[lane]; });
      ex.each([&](unsigned lane) { sum[lane] = before[lane] + ex.other(before, lane, step); });
    }
    ex.each([&](unsigned lane) {
      if (lane == 0) store(at, load<double>(at) + sum[lane]);
    });
  }
};

}  // namespace gpucomm::cuda
