// A program is what one warp does, as phases: in ex.each(f) every lane runs f on its own, and reads nothing
// that another lane writes. In ex.each_together(f) it may read what others wrote in an earlier phase of this
// kind; and all that f loads is under way before anything else is done. Registers of a lane are in
// Exec::Lanes<T>. So one text is run by threads (warp.h) and, in tests, by loops in any order of lanes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/blocks/portable.h"

#ifdef __CUDACC__
#define GPUCOMM_PROGRAM __device__ __forceinline__
#else
#define GPUCOMM_PROGRAM inline
#endif

namespace gpucomm::cuda {

inline constexpr unsigned kLanes = 32, kPerLane = 4, kTile = kLanes * kPerLane;  // elements
inline constexpr unsigned kWarps = 8;                                            // of a thread block

// Loaded and stored as one.
struct alignas(8) Words2 {
  uint32_t at[2];
};
struct alignas(16) Words4 {
  uint32_t at[4];
};
struct Four {
  float at[kPerLane];
};

#ifndef __CUDACC__
void accessed(const void* at, size_t bytes, size_t alignment);  // the tests', who look where programs go
#endif

// Memory that all see; `at` is aligned for T.
template <class T>
GPUCOMM_PROGRAM T load(const std::byte* at) {
#ifdef __CUDACC__
  return *reinterpret_cast<const T*>(at);
#else
  accessed(at, sizeof(T), alignof(T));
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
#endif
}

template <class T>
GPUCOMM_PROGRAM void store(std::byte* at, T value) {
#ifdef __CUDACC__
  *reinterpret_cast<T*>(at) = value;
#else
  accessed(at, sizeof(T), alignof(T));
  std::memcpy(at, &value, sizeof value);
#endif
}

}  // namespace gpucomm::cuda
