// Recode of a piece: decode, add the own operand, encode, without the sum in memory. recode_quickly(shared,
// kind, raw, x, tile, lane, message) of the Math, where there is one, is to all three what encode_quickly()
// is to encode().
#pragma once
#include "cuda/tiles_program.h"

namespace gpucomm::cuda {

// piece.dense is the own operand, which is only read; `to` is another slot than `from`, which is read twice
// where something is coded once more.
template <class Math, class Exec>
struct Recode {
  Exec& ex;
  typename Math::Shared& shared;
  const Piece<Math>& piece;
  const std::byte* from;
  std::byte* to;

  GPUCOMM_PROGRAM void run() const {
    write_size(ex, to, piece.coded_bytes);
    if (check_size(ex, from, piece.coded_bytes, piece.status)) walk<Math::kTiles>(ex, piece.dense, *this);
  }

  template <unsigned kTiles, Access kAccess>
  GPUCOMM_PROGRAM void run(size_t first) const {
    constexpr bool kFull = kAccess != Access::some;
    typename Exec::template Lanes<typename Math::Raw> raw[kTiles];
    typename Exec::template Lanes<Words4> own[kTiles];
    fetch_tiles<kTiles, kAccess>(ex, piece, from, first, true, raw, own);
    if constexpr (kAccess == Access::as_one && requires { &Math::recode_quickly; })
      recode_quickly<kTiles>(first, raw, own);
    else
      recode<kTiles, kFull>(first, raw, own);
  }

  template <unsigned kTiles, bool kFull, class Raws, class Owns>
  GPUCOMM_PROGRAM void recode(size_t first, Raws& raw, Owns& own) const {
    Scales<Math, Exec, kTiles> scales;
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t) {
      const Tile tile = piece.tile(first + t);
      typename Exec::template Lanes<Four> x;
      if (!piece.math.template decode<kFull>(ex, shared, raw[t], tile, x)) {
        report_damaged(ex, piece, tile);
        continue;
      }
      ex.each([&](unsigned lane) {
        x[lane] = rounded(piece.dense.kind, sum(piece.dense.kind, own[t][lane], x[lane]));
        // beyond the end a code may decode to what is no element
        for (unsigned i = 0; !kFull && i < kPerLane; ++i)
          if (lane * kPerLane + i >= tile.count) x[lane].at[i] = 0;
      });
      scales.template encode<kFull>(ex, shared, piece, x, first, t, to);
    }
    scales.store(ex, piece, first, to);
  }

  template <unsigned kTiles, class Raws, class Owns>
  GPUCOMM_PROGRAM void recode_quickly(size_t first, Raws& raw, Owns& own) const {
    const Kind kind = piece.dense.kind;
    try_quickly<kTiles>(
        ex,
        [&](unsigned t, unsigned lane) {
          Four x = widen_any(kind, own[t][lane]);
          return Math::recode_quickly(shared, kind, raw[t][lane], x, piece.tile(first + t), lane,
                                      piece.message(to));
        },
        [&](unsigned t) { run<1, Access::each>(first + t); });
  }
};

}  // namespace gpucomm::cuda
