#include "engine/drivable.h"

#include <sched.h>

#include <algorithm>

#include "base/cpus.h"
#include "base/env.h"
#include "base/error.h"
#include "engine/progress.h"

namespace gpucomm {
namespace {

constexpr auto kGlance = std::chrono::microseconds(100);  // between two looks at what is silent

// Awake for a while, then asleep. The first turns only pause: a peer that runs on another core answers within
// them. From then on each turn offers the core to whoever else needs it; where ranks outnumber cores that may
// be the very rank that is waited for, so there from the start. And for longer: a turn costs the others next
// to nothing, while eight ranks on two cores that put each other to sleep and wake each other take 15 times
// as long.
class Patience {
 public:
  explicit Patience(bool has_core) : pauses_(has_core ? 200 : 0) {
    const int wish = env().spin_us;
    budget_ = std::chrono::microseconds(wish >= 0 ? wish : pauses_ ? 50 : 1000);
  }
  // False when it is time to sleep.
  bool stay_awake() {
    if (turns_++ < pauses_) {
      pause();
      return true;
    }
    sched_yield();
    const auto now = Clock::now();
    if (turns_ == pauses_ + 1) since_ = now;
    return now - since_ < budget_;
  }
  void reset() { turns_ = 0; }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  int pauses_, turns_ = 0;
  std::chrono::microseconds budget_;
  Clock::time_point since_{};
};

// How many ranks may want a core. Beside those of a small group there are those of the world that it was
// split from: the largest that this process has been in.
std::atomic<int> crowd{1};

}  // namespace

Drivable::Drivable(std::shared_ptr<Transport> transport, int ranks) : transport_(std::move(transport)) {
  for (int known = crowd.load(); known < ranks && !crowd.compare_exchange_weak(known, ranks);) {
  }
}

bool Drivable::has_cores() { return crowd.load(std::memory_order_relaxed) <= usable_cpus(); }

void Drivable::wait(Pending& call, std::optional<Seconds> timeout) {
  if (!call.done.load(std::memory_order_acquire)) {
    const auto deadline = timeout ? Clock::now() + clock_time(*timeout) : Clock::time_point::max();
    drive(call, deadline, timeout.value_or(call.timeout));
  }
  if (call.error) throw *call.error;
}

void Drivable::finish(Pending& call, const std::optional<Error>& error) {
  call.error = error;
  call.done.store(true, std::memory_order_release);
  pending_.store(pending_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  if (waiters_.load(std::memory_order_relaxed) > 0) transport_->wake_self();
}

void Drivable::drive(Pending& call, Clock::time_point deadline, Seconds patience_s) {
  waiters_.fetch_add(1, std::memory_order_acq_rel);
  Patience patience(has_cores());
  auto next_look = Clock::time_point::min();
  while (!call.done.load(std::memory_order_acquire)) {
    if (drive_once()) {
      patience.reset();
      continue;
    }
    if (!transport_->waits_long() && patience.stay_awake()) continue;
    const uint32_t ticket = transport_->begin_sleep();
    if (!drive_once() && !call.done.load(std::memory_order_acquire)) {
      const auto now = Clock::now();
      if (now >= next_look) {
        next_look = now + kLook;
        // To ask takes Python's lock, which another thread may hold for long: the progress thread drives
        // meanwhile.
        waiters_.fetch_sub(1, std::memory_order_acq_rel);
        const bool stop = interrupted();
        waiters_.fetch_add(1, std::memory_order_acq_rel);
        if (stop) interrupt();
        check(&call, now >= deadline ? std::optional(patience_s) : std::nullopt);
      }
      auto nap = std::min<Clock::duration>(silent() != Silent::nothing ? Clock::duration(kGlance) : kLook,
                                           deadline - now);
      if (!call.done.load(std::memory_order_acquire))
        transport_->sleep(ticket, std::max(std::chrono::microseconds(100),
                                           std::chrono::duration_cast<std::chrono::microseconds>(nap)));
    }
    transport_->end_sleep();
  }
  if (waiters_.fetch_sub(1, std::memory_order_acq_rel) != 1 || !busy()) return;
  try {
    Progress::instance().add(*this);
  } catch (const Error&) {  // no thread can be had: who waits for the rest will drive it
  }
}

}  // namespace gpucomm
