// Counts what the calls send that one thread makes for a while, apart from all others beside them.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace gpucomm {

class Meter {
 public:
  using Count = std::atomic<uint64_t>;

  // From here until end(), by the same thread. Within another one's time that one stands still.
  void begin() { former_ = std::exchange(current_, sent_); }
  void end() { current_ = std::exchange(former_, nullptr); }
  uint64_t bytes_sent() const { return sent_->load(); }

  // Of this thread; null: it does not count.
  static const std::shared_ptr<Count>& current() { return current_; }

 private:
  inline static thread_local std::shared_ptr<Count> current_;
  std::shared_ptr<Count> sent_ = std::make_shared<Count>(0), former_;
};

}  // namespace gpucomm
