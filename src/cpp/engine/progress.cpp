#include "engine/progress.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "engine/drivable.h"

namespace gpucomm {

// Never destroyed: its thread may run until the process ends.
Progress& Progress::instance() {
  static Progress* const progress = new Progress;
  return *progress;
}

void Progress::add(Drivable& drivable) {
  std::lock_guard lock(mutex_);
  if (std::find(drivables_.begin(), drivables_.end(), &drivable) == drivables_.end())
    drivables_.push_back(&drivable);
  run();
  work_.notify_one();
  drivables_.front()->transport().wake_self();  // the thread may be asleep on that bell
}

void Progress::prepare() {
  if (running_.load(std::memory_order_acquire)) return;  // each asynchronous call comes here
  std::lock_guard lock(mutex_);
  run();
}

// With the lock held.
void Progress::run() {
  if (running_) return;
  try {
    std::thread([this] { loop(); }).detach();
  } catch (const std::system_error& error) {
    fail(ErrorKind::unavailable,
         "the thread that moves asynchronous calls on could not be started: ", error.what());
  }
  running_ = true;
}

void Progress::forget(Drivable& drivable) {
  std::lock_guard lock(mutex_);
  std::erase(drivables_, &drivable);
}

void Progress::loop() {
  pthread_setname_np(pthread_self(), "gpucomm");
  int idle = 0;
  while (true) {
    if (drive_all()) {
      idle = 0;
    } else if (++idle < 64) {
      sched_yield();
    } else {
      rest();
    }
  }
}

// True if anything moved.
bool Progress::drive_all() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [this] { return !drivables_.empty(); });
  bool moved = false;
  for (Drivable* c : std::vector(drivables_)) {
    if (!c->busy())
      std::erase(drivables_, c);
    else if (!c->has_waiter())
      moved |= c->drive_once();
  }
  return moved;
}

// Asleep on the first one's bell. With several the sleep is short, for their bells are not heard.
void Progress::rest() {
  using namespace std::chrono_literals;
  std::unique_lock lock(mutex_);
  if (drivables_.empty()) return;
  if (const auto now = std::chrono::steady_clock::now(); now >= next_look_) {
    next_look_ = now + Drivable::kLook;
    for (Drivable* c : drivables_) c->check();
  }
  Drivable& first = *drivables_.front();
  const bool silent = std::any_of(drivables_.begin(), drivables_.end(),
                                  [](auto* d) { return d->silent() != Silent::nothing; });
  const std::chrono::microseconds nap = silent ? 100us : drivables_.size() == 1 ? 20ms : 1ms;
  if (first.has_waiter()) {  // it is driven by its waiter
    work_.wait_for(lock, nap);
    return;
  }
  const uint32_t ticket = first.transport().begin_sleep();
  if (!first.drive_once()) {
    auto keep = first.shared_transport();
    lock.unlock();
    keep->sleep(ticket, nap);
    keep->end_sleep();
    return;
  }
  first.transport().end_sleep();
}

}  // namespace gpucomm
