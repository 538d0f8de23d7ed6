// A stream of the host device: a queue with a thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace gpucomm {

class HostStream {
 public:
  HostStream(const void* owner, std::chrono::microseconds deferred)
      : owner(owner), deferred_(deferred), pauses_(std::random_device{}()), thread_([this] { serve(); }) {}
  ~HostStream() {
    retire();
    thread_.join();
  }
  // Ends after what it holds.
  void retire() { add({}); }
  bool ended() const { return ended_; }
  void add(std::function<void()> job) {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    added_.notify_one();
  }

  const void* const owner;  // the device

 private:
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [&] { return !jobs_.empty(); });
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      if (!job) return void(ended_ = true);
      if (deferred_.count()) std::this_thread::sleep_for(deferred_ * (pauses_() % 1024) / 1024);
      job();
    }
  }

  std::chrono::microseconds deferred_;
  std::minstd_rand pauses_;
  std::mutex mutex_;  // guards jobs_
  std::condition_variable added_;
  std::deque<std::function<void()>> jobs_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Streams that have been ended, as long as what they hold is yet to be done.
class RetiredStreams {
 public:
  void add(std::unique_ptr<HostStream> stream) {
    stream->retire();
    std::lock_guard lock(mutex_);
    std::erase_if(streams_, [](const auto& one) { return one->ended(); });
    streams_.push_back(std::move(stream));
  }

 private:
  std::mutex mutex_;  // guards streams_
  std::vector<std::unique_ptr<HostStream>> streams_;
};

}  // namespace gpucomm
