// What the thread sanitizer is told, where the emulation is built with it: that each thread of a thread block
// is one, and what orders these. Barriers do; shuffles, the turns that threads take, and other thread blocks
// of the same kernel do not.
#pragma once
#ifdef EMULATED_RACES
#include <sanitizer/tsan_interface.h>

#include <barrier>
#include <functional>
#include <semaphore>
#include <thread>
#endif

namespace emulated {

#ifdef EMULATED_RACES
// A thread as the sanitizer knows it: the one that makes it, or a new one.
class Tracked {
 public:
  static Tracked here() { return Tracked(__tsan_get_current_fiber()); }
  static Tracked made() { return Tracked(__tsan_create_fiber(0)); }
  void end() { __tsan_destroy_fiber(own_); }
  // This one goes on from here, which does not order it behind the last.
  void resume() { __tsan_switch_to_fiber(own_, __tsan_switch_to_fiber_no_sync); }

 private:
  explicit Tracked(void* own) : own_(own) {}
  void* own_;
};

// Who takes comes after all that have given.
struct Order {
  void give() { __tsan_release(this); }
  void take() { __tsan_acquire(this); }
  char unused;
};

// Four threads, kept because new ones take the sanitizer long. They wait in ways that it does not see: only
// what gives and takes is ordered by them, and one kernel behind another.
class Runners {
 public:
  using Call = std::function<void(unsigned own, unsigned runners)>;
  static constexpr unsigned kThreads = 4;

  void run(const Call& call) {
    one_.acquire();
    call_ = &call;
    begins_.give(), begin_.arrive_and_wait();
    end_.arrive_and_wait(), ends_.take();
    one_.release();
  }

 private:
  void serve(unsigned index) {
    for (;;) {
      begin_.arrive_and_wait(), begins_.take();
      (*call_)(index, kThreads);
      ends_.give(), end_.arrive_and_wait();
    }
  }

  std::binary_semaphore one_{1};
  std::barrier<> begin_{kThreads + 1}, end_{kThreads + 1};
  Order begins_, ends_;
  const Call* call_ = nullptr;
  std::thread threads_[kThreads] = {
      std::thread(&Runners::serve, this, 0), std::thread(&Runners::serve, this, 1),
      std::thread(&Runners::serve, this, 2), std::thread(&Runners::serve, this, 3)};
};

// call(own, runners) for every own below runners.
template <class Call>
void at_once(const Call& call) {
  static auto* const runners = new Runners;  // they end with the process
  runners->run(call);
}
#else
struct Tracked {
  static Tracked here() { return {}; }
  static Tracked made() { return {}; }
  void end() {}
  void resume() {}
};

struct Order {
  void give() {}
  void take() {}
};

template <class Call>
void at_once(const Call& call) {
  call(0, 1);
}
#endif

}  // namespace emulated
