// Kernels around the programs, and how they are launched: as many thread blocks as a device holds at a time,
// which go through all that there is.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>

#include "cuda/check.h"
#include "cuda/kernels.h"
#include "cuda/math_of.h"
#include "cuda/warp.h"

namespace gpucomm::cuda {

inline constexpr unsigned kThreads = kWarps * kLanes;

// Thread blocks of this kernel that the current device holds; asked once per device.
template <auto kernel>
unsigned resident_blocks() {
  static std::array<std::atomic<unsigned>, kDevicesKnown> known{};
  int device = 0, processors = 0, each = 0;
  GPUCOMM_CUDA(cudaGetDevice(&device));
  if (device < kDevicesKnown && known[device]) return known[device];
  GPUCOMM_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  GPUCOMM_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, 0));
  const unsigned blocks = static_cast<unsigned>(processors * std::max(each, 1));
  if (device < kDevicesKnown) known[device] = blocks;
  return blocks;
}

// For `groups`, each of which is the work of a warp.
template <auto kernel, class... Args>
void launch(size_t groups, cudaStream_t stream, const Args&... args) {
  const size_t wanted = std::max<size_t>((groups + kWarps - 1) / kWarps, 1);
  const auto blocks = static_cast<unsigned>(std::min<size_t>(wanted, resident_blocks<kernel>()));
  kernel<<<blocks, kThreads, 0, stream>>>(args...);
  GPUCOMM_CUDA(cudaGetLastError());
}

template <class Math>
__device__ __forceinline__ void prepare_block(typename Math::Shared& shared) {
  prepare(shared, threadIdx.x, kThreads);
  __syncthreads();
}

template <class Math>
__global__ void __launch_bounds__(kThreads) encode_tiles(Piece<Math> piece, std::byte* slot) {
  __shared__ typename Math::Shared shared;
  prepare_block<Math>(shared);
  const WarpExec ex;
  Encode<Math, const WarpExec>{ex, shared, piece, slot}.run();
}

template <class Math>
__global__ void __launch_bounds__(kThreads)
    decode_tiles(Piece<Math> piece, const std::byte* slot, bool adds, int divisor) {
  __shared__ typename Math::Shared shared;
  prepare_block<Math>(shared);
  const WarpExec ex;
  Decode<Math, const WarpExec>{ex, shared, piece, slot, adds, divisor}.run();
}

template <class Math>
__global__ void __launch_bounds__(kThreads)
    decode_add_encode_tiles(Piece<Math> piece, const std::byte* from, std::byte* to) {
  __shared__ typename Math::Shared shared;
  prepare_block<Math>(shared);
  const WarpExec ex;
  DecodeAddEncode<Math, const WarpExec>{ex, shared, piece, from, to}.run();
}

template <class Math>
Piece<Math> piece_of(const Job& job, const std::byte* dense) {
  const Kind kind = kind_of(job.piece.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(dense) % (kPerLane * size_of(kind)) == 0;
  return {MathOf<Math>::make(job.argument),
          {const_cast<std::byte*>(dense), job.piece.count, kind, aligned},
          job.coded_bytes(),
          job.status};
}

template <class Math>
size_t groups_of(const Job& job) {
  return job.piece.count / (kTile * Math::kTiles) + 1;
}

template <class Math>
struct TileKernels {
  static void encode(const Job& job) {
    launch<encode_tiles<Math>>(groups_of<Math>(job), job.stream, piece_of<Math>(job, job.dense), job.to_slot);
  }
  static void decode(const Job& job) {
    launch<decode_tiles<Math>>(groups_of<Math>(job), job.stream, piece_of<Math>(job, job.to_dense), job.from,
                               job.adds, job.divisor);
  }
  static void decode_add_encode(const Job& job) {
    launch<decode_add_encode_tiles<Math>>(groups_of<Math>(job), job.stream, piece_of<Math>(job, job.dense),
                                          job.from, job.to_slot);
  }
  static constexpr CodecKernels kAll = {encode, decode, decode_add_encode};
};

}  // namespace gpucomm::cuda
