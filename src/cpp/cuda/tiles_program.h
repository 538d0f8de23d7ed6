// Encode and decode of a piece, tile by tile, with the Math of one codec; recode_program.h has both as one. A
// warp takes several whole tiles at a time, whose loads are then under way together; what is left, or not
// aligned, goes one by one.
//
// Math has kTiles, and kEncodeTiles where that is another number; Raw, what a lane fetches of a coded tile;
// Shared, memory of a thread block, and EncodeShared and DecodeShared, parts of it, where these need less;
// fetch(message, tile, lane); decode(ex, shared, raw, tile, x), false where the message is damaged;
// encode(ex, shared, x, tile, message, status), whose code is the same for every NaN. Where tiles have
// scales, encode() returns it, and store_scale(message, tile's number, scale) takes those of a group
// together: alone each would be a store of one lane. encode_quickly(shared, x, tile, lane, message), where
// there is one, is a lane's part of encode() in a full tile, or false where that would take longer: such
// tiles are coded once more.
#pragma once
#include "cuda/tiles.h"

namespace gpucomm::cuda {

template <class Math>
inline constexpr unsigned kEncodeTiles = [] {
  if constexpr (requires { Math::kEncodeTiles; })
    return Math::kEncodeTiles;
  else
    return Math::kTiles;
}();

template <class Math>
struct SharedOf {
  using Encode = typename Math::Shared;
  using Decode = typename Math::Shared;
};
template <class Math>
  requires requires { typename Math::EncodeShared; }
struct SharedOf<Math> {
  using Encode = typename Math::EncodeShared;
  using Decode = typename Math::DecodeShared;
};

// The scales of the tiles that a warp takes at a time, each with the lane of its place among them.
template <class Math, class Exec, unsigned kTiles>
struct Scales {
  static constexpr bool kAny = requires { &Math::store_scale; };
  typename Exec::template Lanes<uint32_t> of = {};

  template <bool kFull, class Shared>
  GPUCOMM_PROGRAM void encode(const Exec& ex, Shared& shared, const Piece<Math>& piece,
                              typename Exec::template Lanes<Four>& x, size_t first, unsigned place,
                              std::byte* slot) {
    const auto coded = [&] {
      return piece.math.template encode<kFull>(ex, shared, x, piece.tile(first + place), piece.message(slot),
                                               piece.status);
    };
    if constexpr (kAny) {
      const uint32_t scale = coded();
      ex.each([&](unsigned lane) {
        if (lane == place) of[lane] = scale;
      });
    } else {
      coded();
    }
  }

  GPUCOMM_PROGRAM void store(const Exec& ex, const Piece<Math>& piece, size_t first, std::byte* slot) {
    if constexpr (kAny)
      ex.each([&](unsigned lane) {
        if (lane < kTiles) Math::store_scale(piece.message(slot), first + lane, of[lane]);
      });
  }
};

template <class Math, class Exec>
struct Encode {
  Exec& ex;
  typename SharedOf<Math>::Encode& shared;
  const Piece<Math>& piece;
  std::byte* slot;

  GPUCOMM_PROGRAM void run() const {
    write_size(ex, slot, piece.coded_bytes);
    walk<kEncodeTiles<Math>>(ex, piece.dense, *this);
  }

  template <unsigned kTiles, Access kAccess>
  GPUCOMM_PROGRAM void run(size_t first) const {
    constexpr bool kFull = kAccess != Access::some;
    typename Exec::template Lanes<Words4> raw[kTiles];
    ex.each_together([&](unsigned lane) {
#pragma unroll
      for (unsigned t = 0; t < kTiles; ++t)
        raw[t][lane] = fetch<kAccess>(piece.dense, piece.tile(first + t).index(lane));
    });
    if constexpr (kAccess == Access::as_one && requires { &Math::encode_quickly; })
      encode_quickly<kTiles>(first, raw);
    else
      encode<kTiles, kFull>(first, raw);
  }

  template <unsigned kTiles, bool kFull, class Raws>
  GPUCOMM_PROGRAM void encode(size_t first, Raws& raw) const {
    Scales<Math, Exec, kTiles> scales;
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t) {
      typename Exec::template Lanes<Four> x;
      ex.each([&](unsigned lane) { x[lane] = widen_any(piece.dense.kind, raw[t][lane]); });
      scales.template encode<kFull>(ex, shared, piece, x, first, t, slot);
    }
    scales.store(ex, piece, first, slot);
  }

  template <unsigned kTiles, class Raws>
  GPUCOMM_PROGRAM void encode_quickly(size_t first, Raws& raw) const {
    try_quickly<kTiles>(
        ex,
        [&](unsigned t, unsigned lane) {
          return Math::encode_quickly(shared, widen_any(piece.dense.kind, raw[t][lane]),
                                      piece.tile(first + t), lane, piece.message(slot));
        },
        [&](unsigned t) { run<1, Access::each>(first + t); });
  }
};

// What a group of tiles begins with: their codes and, where these are to be added, the own elements.
template <unsigned kTiles, Access kAccess, class Exec, class Math, class Raws, class Owns>
GPUCOMM_PROGRAM void fetch_tiles(const Exec& ex, const Piece<Math>& piece, const std::byte* slot,
                                 size_t first, bool adds, Raws& raw, Owns& own) {
  ex.each_together([&](unsigned lane) {
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t)
      raw[t][lane] = piece.math.template fetch<kAccess != Access::some>(piece.message(slot),
                                                                        piece.tile(first + t), lane);
    if (!adds) return;
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t)
      own[t][lane] = fetch<kAccess>(piece.dense, piece.tile(first + t).index(lane));
  });
}

template <class Exec, class Math>
GPUCOMM_PROGRAM void report_damaged(const Exec& ex, const Piece<Math>& piece, const Tile& tile) {
  ex.each([&](unsigned lane) {
    if (lane == 0) ex.report(piece.status, place_fault(tile.index(0)));
  });
}

template <class Math, class Exec>
struct Decode {
  Exec& ex;
  typename SharedOf<Math>::Decode& shared;
  const Piece<Math>& piece;
  const std::byte* slot;
  bool adds;
  int divisor;

  GPUCOMM_PROGRAM void run() const {
    if (check_size(ex, slot, piece.coded_bytes, piece.status)) walk<Math::kTiles>(ex, piece.dense, *this);
  }

  template <unsigned kTiles, Access kAccess>
  GPUCOMM_PROGRAM void run(size_t first) const {
    constexpr bool kFull = kAccess != Access::some;
    typename Exec::template Lanes<typename Math::Raw> raw[kTiles];
    typename Exec::template Lanes<Words4> own[kTiles];
    fetch_tiles<kTiles, kAccess>(ex, piece, slot, first, adds, raw, own);
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t) {
      const Tile tile = piece.tile(first + t);
      typename Exec::template Lanes<Four> x;
      if (!piece.math.template decode<kFull>(ex, shared, raw[t], tile, x)) {
        report_damaged(ex, piece, tile);
        continue;
      }
      const Kind kind = piece.dense.kind;
      const bool saturates = kind != Kind::float32 && !adds &&
                             ex.any([&](unsigned lane) { return beyond_largest(kind, x[lane]); });
      ex.each([&](unsigned lane) {
        if (saturates) saturate(kind, x[lane], stray());
        put<kAccess>(piece.dense, tile.index(lane), finish(own[t][lane], x[lane]));
      });
    }
  }

  GPUCOMM_PROGRAM Words4 finish(const Words4& own, const Four& x) const {
    const Kind kind = piece.dense.kind;
    const Words4 raw = adds ? narrow_result(kind, sum(kind, own, x)) : narrow(kind, x);
    return divisor > 1 ? divide(kind, raw, static_cast<float>(divisor)) : raw;
  }

  GPUCOMM_PROGRAM float stray() const {
    if constexpr (requires { piece.math.stray; }) return piece.math.stray;
    return blocks::float_of(blocks::kInfinityBits - 1);
  }
};

}  // namespace gpucomm::cuda
