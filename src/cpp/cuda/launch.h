// Kernels around the programs, one for each kind of dense elements, and how they are launched: as many thread
// blocks as a device holds at a time, which go through all that there is.
#pragma once
#include "cuda/kernels.h"
#include "cuda/residency.h"
#include "cuda/tiles_program.h"
#include "cuda/warp.h"

namespace gpucomm::cuda {

// For one or more `groups`, each of which is the work of a warp.
template <auto kernel, class... Args>
void launch(size_t groups, cudaStream_t stream, const Args&... args) {
  const unsigned most = resident_blocks(residency<kernel>);
  const size_t wanted = (groups + kWarps - 1) / kWarps;
  const unsigned blocks = wanted < most ? static_cast<unsigned>(wanted) : most;
  kernel<<<blocks, kThreads, 0, stream>>>(args...);
  check_launch();
}

template <class Math>
__device__ __forceinline__ void prepare_block(typename Math::Shared& shared) {
  prepare(shared, threadIdx.x, kThreads);
  __syncthreads();
}

template <class Math, Kind kKind>
__global__ void __launch_bounds__(kThreads) encode_tiles(Piece<Math> piece, std::byte* slot) {
  __shared__ typename Math::Shared shared;
  prepare_block<Math>(shared);
  piece.dense.kind = kKind;
  const WarpExec ex;
  Encode<Math, const WarpExec>{ex, shared, piece, slot}.run();
}

template <class Math, Kind kKind>
__global__ void __launch_bounds__(kThreads)
    decode_tiles(Piece<Math> piece, const std::byte* slot, bool adds, int divisor) {
  __shared__ typename Math::Shared shared;
  prepare_block<Math>(shared);
  piece.dense.kind = kKind;
  const WarpExec ex;
  Decode<Math, const WarpExec>{ex, shared, piece, slot, adds, divisor}.run();
}

// Four thread blocks at a time: without the number ptxas spills registers of some to make room for five.
template <class Math, Kind kKind>
__global__ void __launch_bounds__(kThreads, 4)
    decode_add_encode_tiles(Piece<Math> piece, const std::byte* from, std::byte* to) {
  __shared__ typename Math::Shared shared;
  prepare_block<Math>(shared);
  piece.dense.kind = kKind;
  const WarpExec ex;
  DecodeAddEncode<Math, const WarpExec>{ex, shared, piece, from, to}.run();
}

template <class Math>
Piece<Math> piece_of(const Job& job, const std::byte* dense) {
  return {Math::make(job.argument), dense_of(job.dtype, dense, job.count), job.coded_bytes, job.status};
}

template <class Math>
size_t groups_of(const Job& job) {
  return job.count / (kTile * Math::kTiles) + 1;
}

template <class Math>
struct TileKernels {
  static void encode(const Job& job) {
    with_kind(job.dtype, [&]<Kind kKind>() {
      launch<encode_tiles<Math, kKind>>(groups_of<Math>(job), job.stream, piece_of<Math>(job, job.dense),
                                        job.to_slot);
    });
  }
  static void decode(const Job& job) {
    with_kind(job.dtype, [&]<Kind kKind>() {
      launch<decode_tiles<Math, kKind>>(groups_of<Math>(job), job.stream, piece_of<Math>(job, job.to_dense),
                                        job.from, job.adds, job.divisor);
    });
  }
  static void decode_add_encode(const Job& job) {
    with_kind(job.dtype, [&]<Kind kKind>() {
      launch<decode_add_encode_tiles<Math, kKind>>(groups_of<Math>(job), job.stream,
                                                   piece_of<Math>(job, job.dense), job.from, job.to_slot);
    });
  }
  static CodecKernels named(const char* name) { return {name, encode, decode, decode_add_encode}; }
};

}  // namespace gpucomm::cuda
