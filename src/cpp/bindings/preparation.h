// The calls of our own that come before a call: of links, of codecs, of the largest magnitude. They are the
// one thread's that makes that call; what other threads call meanwhile waits, for it would come between them.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bindings/interpreter.h"
#include "engine/program.h"

namespace gpucomm {

class Preparation {
 public:
  // Whether this thread makes them.
  explicit operator bool() const { return before_ && thread_ == std::this_thread::get_id(); }
  const std::shared_ptr<const Shape>& before() const { return before_; }

  void wait_for_others() const {
    while (before_ && !*this) {  // another thread may begin while this one comes back
      const Released released;
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [this] { return !before_; });
    }
  }

  template <class Calls>
  void run(const Shape& call, Calls calls) {
    wait_for_others();
    set(std::make_shared<const Shape>(call));
    try {
      calls();
    } catch (...) {
      set({});
      throw;
    }
    set({});
  }

 private:
  // By who holds the GIL: it is read with that, or with the mutex.
  void set(std::shared_ptr<const Shape> before) {
    {
      std::lock_guard lock(mutex_);
      before_ = std::move(before), thread_ = std::this_thread::get_id();
    }
    ended_.notify_all();
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::shared_ptr<const Shape> before_;
  std::thread::id thread_;
};

}  // namespace gpucomm
