// Floats of up to 32 bits from one dtype to another, as convert() of codecs/floats.h.
#pragma once
#include "cuda/dense.h"

namespace gpucomm::cuda {

template <Access kAccess>
GPUCOMM_PROGRAM void convert_four(const Dense& from, const Dense& to, size_t index) {
  put<kAccess>(to, index, narrow(to.kind, widen(from.kind, fetch<kAccess>(from, index))));
}

template <class Exec>
GPUCOMM_PROGRAM void convert_tiles(const Exec& ex, const Dense& from, const Dense& to) {
  const size_t tiles = (from.count + kTile - 1) / kTile;
  const size_t full = from.aligned && to.aligned ? from.count / kTile : 0;
  for (size_t tile = ex.warp(); tile < tiles; tile += ex.warps())
    ex.each([&](unsigned lane) {
      const size_t index = tile * kTile + lane * kPerLane;
      tile < full ? convert_four<Access::as_one>(from, to, index)
                  : convert_four<Access::some>(from, to, index);
    });
}

}  // namespace gpucomm::cuda
