// A communicator: runs calls in the order of issue, one at a time; whoever waits drives them, else the
// progress thread. After a fault it is closed for good.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/choose.h"
#include "engine/execution.h"

namespace gpucomm {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// A call under way. Its arrays must stay until it is done.
struct Work {
  std::shared_ptr<const Program> program;
  Arrays arrays;
  Seconds timeout{60};
  uint64_t sequence = 0;
  Execution execution;
  bool started = false;
  std::optional<Clock::time_point> deadline;  // from the first look at it: short calls read no clock
  std::atomic<bool> done{false};
  std::optional<Error> error;  // set before done
};

class Communicator {
 public:
  Communicator(std::shared_ptr<Transport> transport, std::string transport_name, int rank, int world,
               Seconds timeout);
  ~Communicator();

  // Runs a call and waits for its end; throws its error.
  void run(const Shape& shape, const Arrays& arrays, Seconds timeout);
  // Starts a call; the progress thread drives it while nobody waits.
  std::shared_ptr<Work> start(const Shape& shape, const Arrays& arrays, Seconds timeout);
  // Waits for the end; throws the call's error. A deadline that passes is a fault like any timeout.
  void wait(const std::shared_ptr<Work>& work, std::optional<Seconds> timeout);
  // An all_reduce of nothing.
  void barrier(Seconds timeout);
  void close();
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // One attempt to move the front call on; for the progress thread. False: nothing could be done.
  bool drive_once();
  bool busy() const { return pending_.load(std::memory_order_acquire) > 0; }
  bool has_waiter() const { return waiters_.load(std::memory_order_acquire) > 0; }
  // What is looked at now and then by who waits: poison, lost peers, mismatches, the deadline.
  // `expired`: a waiter's own deadline of that length has passed.
  void check(std::optional<Seconds> expired = {});
  Transport& transport() { return *transport_; }
  Transport::Counters transport_counters() const { return transport_->counters(); }
  std::shared_ptr<Transport> shared_transport() { return transport_; }

  // Asked now and then by a thread that waits in a call: true ends the wait, and with it the communicator.
  void set_interrupt(bool (*interrupted)()) { interrupted_ = interrupted; }

  int rank() const { return rank_; }
  int world() const { return world_; }
  const std::string& transport_name() const { return transport_name_; }
  Seconds timeout() const { return timeout_; }
  uint64_t calls() const {
    std::lock_guard lock(mutex_);
    return sequence_;
  }
  const Links& links() const { return links_; }
  bool links_known() const { return links_known_; }
  void set_links(const Links& links);

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  void grow_scratch(size_t bytes);
  std::shared_ptr<const Program> program(const Shape& shape);
  std::shared_ptr<Work> submit(const Shape& shape, const Arrays& arrays, Seconds timeout);
  void drive(Work& work, Clock::time_point deadline, Seconds patience_s);
  bool advance_front();
  void finish_front(const std::optional<Error>& error);
  void fault(const Error& error);
  void interrupt();
  void check_open() const;
  void check_poison() const;
  void check_peers(const Work& work) const;
  [[noreturn]] void time_out(const Work& work, Seconds after) const;
  std::string where() const;

  bool (*interrupted_)() = nullptr;
  std::shared_ptr<Transport> transport_;
  std::string transport_name_;
  int rank_, world_;
  Seconds timeout_;
  mutable std::mutex mutex_;  // guards all below but the atomics
  std::deque<std::shared_ptr<Work>> queue_;
  std::map<std::string, std::shared_ptr<const Program>> programs_;
  Shape last_shape_;
  std::shared_ptr<const Program> last_program_;
  std::shared_ptr<Work> spare_;
  std::unique_ptr<std::byte[], Free> scratch_;
  size_t scratch_bytes_ = 0;
  uint64_t sequence_ = 0;
  Links links_;
  Choices choices_;
  std::optional<Error> fault_;
  std::atomic<bool> links_known_{false}, closed_{false};
  std::atomic<int> pending_{0}, waiters_{0};
};

}  // namespace gpucomm
