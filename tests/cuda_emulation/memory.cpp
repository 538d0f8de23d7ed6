// Memory of GPUs, which other processes may open, and of the host: what of it a kernel may use.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/program.h"
#include "devices/shared_memory.h"
#include "gpus.h"
#include "handles.h"

using namespace gpucomm;
using namespace emulated;

namespace {

constexpr int kAnyGpu = -1;
std::atomic<size_t> most_bytes{1 << 30};  // that cudaMalloc gives at once

class Memory {
 public:
  struct Block {
    size_t bytes;
    int gpu;
    std::shared_ptr<void> keeps;  // null: not ours
    bool opened = false;          // another process's
  };

  void* add(void* at, Block block) {
    std::lock_guard lock(mutex_);
    blocks_.emplace(static_cast<const std::byte*>(at), std::move(block)), ++changes_;
    return at;
  }
  // False: there is no such block.
  bool remove(const void* at, bool opened = false) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<const std::byte*>(at));
    if (found == blocks_.end() || found->second.opened != opened) return false;
    return blocks_.erase(found), ++changes_, true;
  }
  std::string handle(const void* at) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<const std::byte*>(at));
    if (found == blocks_.end() || found->second.gpu == kAnyGpu || found->second.opened) return "";
    return static_cast<SharedMemory*>(found->second.keeps.get())->handle();
  }

  cudaError_t lend(int to, int gpu) {
    std::lock_guard lock(mutex_);
    ++changes_;
    return std::exchange(lent_[to][gpu], true) ? result(cudaErrorPeerAccessAlreadyEnabled) : cudaSuccess;
  }
  // What a thread has seen of late it knows until something changes.
  void check(const std::byte* at, size_t bytes) {
    thread_local struct {
      uint64_t changes;
      int gpu;
      unsigned next;
      std::pair<const std::byte*, const std::byte*> blocks[8];
    } seen;
    if (seen.changes != changes_.load(std::memory_order_acquire) || seen.gpu != working_on)
      seen = {changes_, working_on, 0, {}};
    for (const auto& [begin, end] : seen.blocks)
      if (at >= begin && at + bytes <= end) return;
    std::lock_guard lock(mutex_);
    const auto& [begin, block] = *block_of(at, bytes);
    if (const int gpu = block.gpu; gpu != kAnyGpu && gpu != working_on && !lent_[working_on][gpu])
      give_up("a kernel uses memory of a GPU that its own has no access to");
    seen.blocks[seen.next++ % 8] = {begin, begin + block.bytes};
  }
  void check_copy(const std::byte* at, size_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes) block_of(at, bytes);
  }

 private:
  std::map<const std::byte*, Block>::const_iterator block_of(const std::byte* at, size_t bytes) const {
    auto found = blocks_.upper_bound(at);
    if (found == blocks_.begin() || (--found)->first + found->second.bytes < at + bytes)
      give_up("memory is used that is no GPU's");
    return found;
  }

  std::mutex mutex_;  // guards all below but changes_
  std::atomic<uint64_t> changes_{1};
  std::map<const std::byte*, Block> blocks_;
  bool lent_[kGpus][kGpus] = {};
};
Memory& memory_known() {
  static auto* const one = new Memory;
  return *one;
}

// As CUDA does, it waits for all that the GPU was given.
cudaError_t give_back(const void* memory, bool opened) {
  if (const cudaError_t refused = unsafe_in_captures()) return refused;
  here().under_way.wait();
  if (memory && !memory_known().remove(memory, opened)) give_up("memory is given back that there is not");
  return cudaSuccess;
}

// Nobody may read what nobody has written: NaN as floats, -1 as integers.
void* worthless(void* memory, size_t bytes) { return std::memset(memory, 0xff, bytes); }

}  // namespace

// Of every access of a kernel: a GPU faults where it is not aligned, or not its memory. To the thread
// sanitizer the lock would order the kernel's threads.
void gpucomm::cuda::accessed(const void* at, size_t bytes, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(at) % alignment) give_up("a kernel accesses what is not aligned");
#ifndef EMULATED_RACES
  memory_known().check(static_cast<const std::byte*>(at), bytes);
#endif
}

// CUDA takes other memory of the host too, but waits for the copy then.
void emulated::check_copy(const void* at, size_t bytes) {
  memory_known().check_copy(static_cast<const std::byte*>(at), bytes);
}

extern "C" {

// For the tests, by ctypes: a limit, and arrays of theirs.
void emulated_limit(size_t bytes) { most_bytes = bytes; }
void emulated_own(void* at, size_t bytes, int gpu) { memory_known().add(at, {bytes, gpu, nullptr}); }
void emulated_disown(const void* at) { memory_known().remove(at); }

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (const cudaError_t told = fault(__func__)) return told;
  return memory_known().lend(here().index, peer);
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t refused = unsafe_in_captures()) return refused;
  if (!bytes) return *memory = nullptr, cudaSuccess;
  if (bytes > most_bytes) return result(cudaErrorMemoryAllocation);
  auto own = std::make_shared<SharedMemory>(bytes);
  void* const at = worthless(own->data(), bytes);
  *memory = memory_known().add(at, {bytes, here().index, std::move(own)});
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) { return give_back(memory, false); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const cudaError_t refused = unsafe_in_captures()) return refused;
  std::shared_ptr<void> own(std::aligned_alloc(256, (bytes + 255) / 256 * 256), std::free);
  void* const at = worthless(own.get(), bytes);
  *memory = memory_known().add(at, {bytes, kAnyGpu, std::move(own)});
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** seen, void* memory, unsigned) {
  return *seen = memory, cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return give_back(memory, false); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = most_bytes, *total = 1 << 30, cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  if (const cudaError_t told = fault(__func__)) return told;
  here();
  const std::string text = memory_known().handle(memory);
  return text.empty() ? result(cudaErrorInvalidValue) : (write(handle, text), cudaSuccess);
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  if (const cudaError_t told = fault(__func__)) return told;
  if (const cudaError_t refused = unsafe_in_captures()) return refused;
  if (own_handle(handle)) return result(cudaErrorDeviceUninitialized);
  auto own = std::make_shared<SharedMemory>(std::string(handle.reserved));
  void* const at = own->data();
  const size_t bytes = own->bytes();
  *memory = memory_known().add(at, {bytes, here().index, std::move(own), true});
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return give_back(memory, true); }

}  // extern "C"
