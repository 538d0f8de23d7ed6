// The two GPUs of the emulation. Their streams, events and captures are those of the host device.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "devices/host_stream.h"
#include "emulation.h"

namespace emulated {

inline constexpr int kGpus = 2;

// What a GPU was given and has not done yet, by number.
class UnderWay {
 public:
  std::function<void()> add(std::function<void()> job) {
    std::lock_guard lock(mutex_);
    all_.insert(++last_);
    return [this, number = last_, job = std::move(job)] {
      job();
      std::lock_guard held(mutex_);
      all_.erase(number);
      done_.notify_all();
    };
  }
  // For all that there is now.
  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this, last = last_] { return all_.empty() || *all_.begin() > last; });
  }

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable done_;
  std::set<uint64_t> all_;
  uint64_t last_ = 0;
};

struct Gpu {
  int index;
  gpucomm::HostStream standard{this, std::chrono::microseconds(0)};
  UnderWay under_way{};
  void give(gpucomm::HostStream& stream, std::function<void()> job) {
    stream.add(under_way.add(std::move(job)));
  }
};
inline Gpu& gpu(int index) {
  static Gpu* const all[kGpus] = {new Gpu{0}, new Gpu{1}};  // their threads end with the process
  return *all[index];
}

// Of this thread: the current GPU is the last; and the error that the runtime remembers.
inline thread_local std::vector<int> current;
inline thread_local cudaError_t last = cudaSuccess;

// Where none is current, CUDA takes the first GPU, and makes a context on it, which costs memory there.
inline Gpu& here() {
  if (current.empty()) give_up("a call of CUDA while no GPU is current");
  return gpu(current.back());
}
inline gpucomm::HostStream& stream_of(cudaStream_t stream) {
  return stream ? *reinterpret_cast<gpucomm::HostStream*>(stream) : here().standard;
}
inline cudaError_t result(cudaError_t error) { return error ? last = error : error; }
// What a test has a function answer.
cudaError_t fault(const char* function);
// Of a call that might wait for work that is only captured: refused, and the captures fail, but where this
// thread has asked for the relaxed mode.
cudaError_t unsafe_in_captures();
// Of memory that is copied asynchronously: a GPU's, or page-locked.
void check_copy(const void* at, size_t bytes);

}  // namespace emulated
