// Kernels around the programs, one for each kind of dense elements, and how they are launched: as many thread
// blocks as a device holds at a time, which stay and go through all that there is; or one for each part of
// the work, which is faster for most codecs, but not where a block begins with work of its own.
#pragma once
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/recode_program.h"
#include "cuda/residency.h"
#include "cuda/warp.h"

namespace gpucomm::cuda {

inline constexpr size_t kMostBlocks = 0x7fffffff;

// Rows of thread blocks: the work of each in groups, each of which is that of a warp.
struct Rows {
  size_t count = 0, longest = 0, groups = 0;
  void add(size_t some) { ++count, longest = std::max(longest, some), groups += some; }
};

// For one or more groups. All rows get as many thread blocks as the longest one should have, by its share of
// the work; those that a shorter row has nothing for end soon.
template <auto kernel, bool kStays = true, unsigned kBlockWarps = kWarps, class... Args>
void launch(const Rows& rows, cudaStream_t stream, const Args&... args) {
  constexpr unsigned kBlockThreads = kBlockWarps * kLanes;
  const size_t held = resident_blocks(residency<kernel, kBlockWarps>);
  const size_t wanted = (rows.longest + kBlockWarps - 1) / kBlockWarps;
  const size_t most = kStays ? std::max<size_t>(held * rows.longest / rows.groups, 1) : kMostBlocks;
  kernel<<<dim3(std::min(wanted, most), rows.count), kBlockThreads, 0, stream>>>(args...);
  check_launch();
}
template <auto kernel, bool kStays = true, class... Args>
void launch(size_t groups, cudaStream_t stream, const Args&... args) {
  launch<kernel, kStays>(Rows{1, groups, groups}, stream, args...);
}

// Warps of a thread block that decodes tiles, which is more than others where they share large tables.
template <class Math>
inline constexpr unsigned kDecodeWarps = [] {
  if constexpr (requires { Math::kDecodeWarps; })
    return Math::kDecodeWarps;
  else
    return kWarps;
}();
// The same of one that codes partial sums.
template <class Math>
inline constexpr unsigned kRecodeWarps = [] {
  if constexpr (requires { Math::kRecodeWarps; })
    return Math::kRecodeWarps;
  else
    return kDecodeWarps<Math>;
}();

template <class Shared>
__device__ __forceinline__ void prepare_block(Shared& shared, unsigned warps) {
  prepare(shared, threadIdx.x, warps * kLanes);
  __syncthreads();
}

// Pieces of one call, each a row of thread blocks.
template <class Math>
struct Coded {
  Piece<Math> pieces[kMostPieces];
  const std::byte* from[kMostPieces];
  std::byte* to[kMostPieces];  // slots

  template <Kind kKind>
  __device__ Piece<Math> piece() const {
    Piece<Math> piece = pieces[blockIdx.y];
    piece.dense.kind = kKind;
    return piece;
  }
};

template <class Math, Kind kKind>
__global__ void __launch_bounds__(kThreads) encode_tiles(const __grid_constant__ Coded<Math> coded) {
  __shared__ typename SharedOf<Math>::Encode shared;
  prepare_block(shared, kWarps);
  const Piece<Math> piece = coded.template piece<kKind>();
  const WarpExec ex;
  Encode<Math, const WarpExec>{ex, shared, piece, coded.to[blockIdx.y]}.run();
}

template <class Math, Kind kKind>
__global__ void __launch_bounds__(kDecodeWarps<Math>* kLanes)
    decode_tiles(const __grid_constant__ Coded<Math> coded, bool adds, int divisor) {
  __shared__ typename SharedOf<Math>::Decode shared;
  prepare_block(shared, kDecodeWarps<Math>);
  const Piece<Math> piece = coded.template piece<kKind>();
  const WarpExecOf<kDecodeWarps<Math>> ex;
  Decode<Math, decltype(ex)>{ex, shared, piece, coded.from[blockIdx.y], adds, divisor}.run();
}

// 32 warps at a time: without the number ptxas spills registers of some to make room for more.
template <class Math, Kind kKind>
__global__ void __launch_bounds__(kRecodeWarps<Math>* kLanes, 32 / kRecodeWarps<Math>)
    recode_tiles(const __grid_constant__ Coded<Math> coded) {
  __shared__ typename Math::Shared shared;
  prepare_block(shared, kRecodeWarps<Math>);
  const Piece<Math> piece = coded.template piece<kKind>();
  const WarpExecOf<kRecodeWarps<Math>> ex;
  Recode<Math, decltype(ex)>{ex, shared, piece, coded.from[blockIdx.y], coded.to[blockIdx.y]}.run();
}

template <class Math>
Piece<Math> piece_of(const Job& job, const std::byte* dense) {
  return {Math::make(job.argument), dense_of(job.dtype, dense, job.count), job.coded_bytes, job.status};
}

template <class Math>
struct TileKernels {
  static constexpr bool kStays = requires { Math::kStays; };
  static constexpr bool kStaysFused = [] {
    if constexpr (requires { Math::kStaysFused; })
      return Math::kStaysFused;
    else
      return kStays;
  }();

  struct Pieces {
    Pieces(const Job* jobs, size_t count, unsigned tiles) {
      for (size_t i = 0; i < count; ++i) {
        const Job& job = jobs[i];
        coded.pieces[i] = piece_of<Math>(job, job.to_dense ? job.to_dense : job.dense);
        coded.from[i] = job.from, coded.to[i] = job.to_slot;
        rows.add(job.count / (kTile * tiles) + 1);
      }
    }
    Coded<Math> coded;
    Rows rows;
  };

  static void encode(const Job* jobs, size_t count) {
    const Pieces all(jobs, count, kEncodeTiles<Math>);
    with_kind(jobs->dtype, [&]<Kind kKind>() {
      launch<encode_tiles<Math, kKind>, kStays>(all.rows, jobs->stream, all.coded);
    });
  }
  static void decode(const Job* jobs, size_t count) {
    const Pieces all(jobs, count, Math::kTiles);
    with_kind(jobs->dtype, [&]<Kind kKind>() {
      launch<decode_tiles<Math, kKind>, kStays, kDecodeWarps<Math>>(all.rows, jobs->stream, all.coded,
                                                                    jobs->adds, jobs->divisor);
    });
  }
  static void recode(const Job* jobs, size_t count) {
    const Pieces all(jobs, count, Math::kTiles);
    with_kind(jobs->dtype, [&]<Kind kKind>() {
      launch<recode_tiles<Math, kKind>, kStaysFused, kRecodeWarps<Math>>(all.rows, jobs->stream, all.coded);
    });
  }
  static CodecKernels named(const char* name) { return {name, encode, decode, recode}; }
};

}  // namespace gpucomm::cuda
