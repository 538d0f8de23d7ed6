// The tiles of a piece, how warps go through them, and the size in front of its message.
#pragma once
#include "cuda/dense.h"
#include "cuda/status.h"

namespace gpucomm::cuda {

inline constexpr size_t kHeader = 8;

// The coded bytes of a piece.
struct Message {
  std::byte* bytes;
  size_t count;  // elements
};

struct Tile {
  size_t number;
  unsigned count;  // elements
  GPUCOMM_PROGRAM size_t index(unsigned lane) const { return number * kTile + lane * kPerLane; }
};

// What a thread block does with its memory first; overloaded where that is anything.
template <class Shared>
GPUCOMM_PROGRAM void prepare(Shared&, unsigned /*thread*/, unsigned /*threads*/) {}

template <class Math>
struct Piece {
  Math math;
  Dense dense;
  size_t coded_bytes;
  Status* status;

  GPUCOMM_PROGRAM Tile tile(size_t number) const {
    const size_t left = dense.count - number * kTile;
    return {number, left < kTile ? static_cast<unsigned>(left) : kTile};
  }
  GPUCOMM_PROGRAM Message message(const std::byte* slot) const {
    return {const_cast<std::byte*>(slot) + kHeader, dense.count};
  }
};

// call.run<kTiles, kAccess>(first tile), for all tiles.
template <unsigned kTiles, class Exec, class Call>
GPUCOMM_PROGRAM void walk(const Exec& ex, const Dense& dense, const Call& call) {
  const size_t whole = dense.count / kTile;
  const size_t groups = dense.aligned ? whole / kTiles : 0;
  for (size_t group = ex.warp(); group < groups; group += ex.warps())
    call.template run<kTiles, Access::as_one>(group * kTiles);
  size_t tile = groups * kTiles + ex.warp();
  for (; tile < whole; tile += ex.warps()) call.template run<1, Access::each>(tile);
  if (tile * kTile < dense.count) call.template run<1, Access::some>(tile);
}

// quick(tile's place, lane) for all tiles of a group; exact(tile's place), by all lanes, where any gave
// false: it fetches once more what quick() had, and stores what is right over what that has stored.
template <unsigned kTiles, class Exec, class Quick, class Exact>
GPUCOMM_PROGRAM void try_quickly(const Exec& ex, const Quick& quick, const Exact& exact) {
  typename Exec::template Lanes<bool> right[kTiles], all_right;
  ex.each([&](unsigned lane) {
    all_right[lane] = true;
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t) {
      right[t][lane] = quick(t, lane);
      all_right[lane] &= right[t][lane];
    }
  });
  if (!ex.any([&](unsigned lane) { return !all_right[lane]; })) return;
  typename Exec::template Lanes<unsigned> wrong = {};
  ex.each([&](unsigned lane) {
#pragma unroll
    for (unsigned t = 0; t < kTiles; ++t) wrong[lane] |= (right[t][lane] ? 0u : 1u) << t;
  });
#pragma unroll 1
  for (unsigned t = 0; t < kTiles; ++t)
    if (ex.any([&](unsigned lane) { return wrong[lane] >> t & 1; })) exact(t);
}

template <class Exec>
GPUCOMM_PROGRAM void write_size(const Exec& ex, std::byte* slot, uint64_t bytes) {
  if (ex.warp() == 0)
    ex.each([&](unsigned lane) {
      if (lane == 0) store(slot, bytes);
    });
}

// False, and reported, where the message is not of the size that it must have.
template <class Exec>
GPUCOMM_PROGRAM bool check_size(const Exec& ex, const std::byte* slot, uint64_t bytes, Status* status) {
  const auto found = load<uint64_t>(slot);
  if (found == bytes) return true;
  ex.each([&](unsigned lane) {
    if (lane == 0 && ex.warp() == 0) ex.report(status, size_fault(found));
  });
  return false;
}

}  // namespace gpucomm::cuda
