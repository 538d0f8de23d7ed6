// What waiters and the progress thread move on: calls under way over one transport. Whoever waits drives all
// of them, else the progress thread.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "devices/handles.h"
#include "transports/transport.h"

namespace gpucomm {

// A call under way. Its arrays must stay until it is done.
struct Pending {
  Seconds timeout{60};
  std::optional<Clock::time_point> deadline;  // from the first look at it: short calls read no clock
  std::atomic<bool> done{false};
  std::optional<Error> error;  // set before done
  // On a device a call is done when it is enqueued; this comes behind it. Null: host memory.
  std::shared_ptr<OwnEvent> finished;
  Stream stream = nullptr;  // where it was called
  uint64_t capture = 0;     // of a graph, into which it went: its work runs when that does, again and again
};

// What is waited for and tells nobody when it is done: of other ranks, or this rank's own device.
enum class Silent { nothing, others, own_device };

class Drivable {
 public:
  // Between two looks at peers, poison and the clock.
  static constexpr auto kLook = std::chrono::milliseconds(20);

  // `ranks`: how many may want this machine's cores.
  Drivable(std::shared_ptr<Transport> transport, int ranks);
  virtual ~Drivable() = default;

  // One attempt to move something on, which never blocks. False: nothing could be done.
  virtual bool drive_once() = 0;
  // What is looked at now and then by who waits: poison, lost peers, mismatches, the deadlines.
  // `expired`: the own deadline of who waits for `waited`, of that length, has passed.
  virtual void check(const Pending* waited = nullptr, std::optional<Seconds> expired = {}) = 0;
  // Waits for the end; throws the call's error. A deadline that passes is a fault like any timeout.
  void wait(Pending& call, std::optional<Seconds> timeout);

  bool busy() const { return pending_.load(std::memory_order_acquire) > 0; }
  // What moves what is under way on and tells nobody: who waits looks often.
  Silent silent() const { return silent_.load(std::memory_order_relaxed); }
  bool has_waiter() const { return waiters_.load(std::memory_order_acquire) > 0; }
  Transport& transport() { return *transport_; }
  std::shared_ptr<Transport> shared_transport() { return transport_; }
  // Asked now and then by a thread that waits in a call: true ends the wait, and with it the communicator.
  void set_interrupt(bool (*interrupted)()) { interrupted_ = interrupted; }

 protected:
  // These two with the lock held that guards the calls.
  void began() { pending_.store(pending_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void finish(Pending& call, const std::optional<Error>& error);
  // Whether each rank here has a core of its own.
  static bool has_cores();
  bool interrupted() const { return interrupted_ && interrupted_(); }
  // With a fault that says so: a signal's handler has raised.
  virtual void interrupt() = 0;

  std::shared_ptr<Transport> transport_;
  std::atomic<Silent> silent_{Silent::nothing};

 private:
  void drive(Pending& call, Clock::time_point deadline, Seconds patience_s);

  bool (*interrupted_)() = nullptr;
  std::atomic<int> pending_{0}, waiters_{0};
};

}  // namespace gpucomm
