// bf16, fp16: every element rounded to that type; the wire is that of codecs/casts.cpp.
#pragma once
#include "cuda/tiles_program.h"

namespace gpucomm::cuda {

template <Kind kCoded>
struct Cast {
  static constexpr unsigned kTiles = 4;
  using Raw = Words2;
  struct Shared {};
  static Cast make(const char*) { return {}; }

  template <bool kFull>
  GPUCOMM_PROGRAM Raw fetch(const Message& message, const Tile& tile, unsigned lane) const {
    if constexpr (kFull) return load<Words2>(message.bytes + 2 * tile.index(lane));
    const Words4 raw = cuda::fetch<Access::some>(coded(message), tile.index(lane));
    return {raw.at[0], raw.at[1]};
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM bool decode(const Exec& ex, Shared&, typename Exec::template Lanes<Raw>& raw, const Tile&,
                              typename Exec::template Lanes<Four>& x) const {
    ex.each([&](unsigned lane) { x[lane] = widen(kCoded, Words4{raw[lane].at[0], raw[lane].at[1], 0, 0}); });
    return true;
  }

  template <bool kFull, class Exec>
  GPUCOMM_PROGRAM void encode(const Exec& ex, Shared&, typename Exec::template Lanes<Four>& x,
                              const Tile& tile, const Message& message, Status*) const {
    constexpr Access kAccess = kFull ? Access::as_one : Access::some;
    ex.each([&](unsigned lane) { put<kAccess>(coded(message), tile.index(lane), narrow(kCoded, x[lane])); });
  }

  static GPUCOMM_PROGRAM Dense coded(const Message& message) {
    return {message.bytes, message.count, kCoded, true};
  }
};

using Bf16 = Cast<Kind::bfloat16>;
using Fp16 = Cast<Kind::float16>;

}  // namespace gpucomm::cuda
