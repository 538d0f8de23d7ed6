// CUDA's language for a host compiler: kernels run as functions, each thread of a thread block on a stack of
// its own. Included before all else, so what the kernels include of CUDA is this.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <functional>

// One thread of the system runs a thread block, and one block at a time.
#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace emulated {

struct Place {  // of a thread
  uint3 thread, block;
  dim3 grid;
};
const Place& place();

// All threads of the block, or of the warp, must come: else the process is aborted with a sentence.
void sync_block();
void sync_warp();
uint64_t shuffle_xor(unsigned mask, uint64_t value, unsigned step);

// What no test should do: ends the process.
[[noreturn]] void give_up(const char* why);

cudaError_t enqueue(cudaStream_t stream, std::function<void()> job);
// False: the runtime remembers that there is no such grid.
bool launchable(const void* kernel, dim3 grid, unsigned threads);
// As enqueue, of the current GPU's streams only.
void launch_on(cudaStream_t stream, std::function<void()> job);
inline thread_local int working_on = 0;  // that GPU
void run_blocks(dim3 grid, unsigned threads, const std::function<void()>& kernel);

// What tests/on_emulated.py writes behind __launch_bounds__ and __shared__: at most so many threads; memory
// that holds nothing that anybody has written.
void bound(unsigned threads);
void unwritten(void* shared, size_t bytes);

// In place of kernel<<<grid, threads, 0, stream>>>(args...).
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, cudaStream_t stream,
            const Args&... args) {
  static_assert((size_t{0} + ... + sizeof(Parameters)) <= 4096);  // what all GPUs and drivers take
  if (!launchable(reinterpret_cast<const void*>(kernel), grid, threads)) return;
  launch_on(stream, [=] { run_blocks(grid, threads, [&] { kernel(args...); }); });
}

}  // namespace emulated

#define threadIdx (::emulated::place().thread)
#define blockIdx (::emulated::place().block)
#define gridDim (::emulated::place().grid)

inline void __syncthreads() { emulated::sync_block(); }
inline void __syncwarp() { emulated::sync_warp(); }
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned step) {
  static_assert(sizeof value <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulated::shuffle_xor(mask, bits, step);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline bool __any_sync(unsigned mask, bool value) {
  for (unsigned step = 16; step; step /= 2) value |= __shfl_xor_sync(mask, value, step);
  return value;
}
template <class T>
void atomicMax_system(T* at, T value) {
  T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (seen < value &&
         !__atomic_compare_exchange_n(at, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
inline void atomicOr(uint32_t* at, uint32_t bits) { __atomic_fetch_or(at, bits, __ATOMIC_RELAXED); }
