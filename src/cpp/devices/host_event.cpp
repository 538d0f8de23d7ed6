#include "devices/host_event.h"

#include <algorithm>

#include "base/futex.h"
#include "base/process.h"

namespace gpucomm {

struct HostEvent::Words {
  std::atomic<uint64_t> recorded, reached;
  std::atomic<uint32_t> bell;
  long long pid, started;  // of its maker; 0: it is not shared
};

size_t HostEvent::bytes() { return sizeof(Words); }

HostEvent::HostEvent() : own_(std::make_shared<Words>()), words_(own_.get()) {}

HostEvent::HostEvent(SharedMemory memory, Opened)
    : memory_(std::move(memory)), words_(reinterpret_cast<Words*>(memory_->data())) {}

HostEvent::HostEvent(SharedMemory memory) : HostEvent(std::move(memory), Opened{}) {
  words_->pid = getpid(), words_->started = process_state(getpid()).started;
}

std::shared_ptr<HostEvent> HostEvent::open(const std::string& handle) {
  return std::shared_ptr<HostEvent>(new HostEvent(SharedMemory(handle), Opened{}));
}

uint64_t HostEvent::record() { return words_->recorded.fetch_add(1, std::memory_order_acq_rel) + 1; }
uint64_t HostEvent::recorded() const { return words_->recorded.load(std::memory_order_acquire); }
bool HostEvent::done() const { return words_->reached.load(std::memory_order_acquire) >= recorded(); }
long long HostEvent::maker() const { return words_->pid; }

void HostEvent::reach(uint64_t number) {
  uint64_t reached = words_->reached.load(std::memory_order_relaxed);
  while (reached < number &&
         !words_->reached.compare_exchange_weak(reached, number, std::memory_order_acq_rel)) {
  }
  words_->bell.fetch_add(1, std::memory_order_acq_rel);
  futex_wake(words_->bell);
}

bool HostEvent::maker_ended() const {
  if (!words_->pid || words_->pid == getpid()) return false;
  const ProcessState now = process_state(words_->pid);
  return now.ended() || now.started != words_->started;
}

bool HostEvent::wait(uint64_t number) {
  constexpr std::chrono::milliseconds kLook{10};  // a process that ends rings no bell
  for (bool ended = false;; ended = maker_ended()) {
    const uint32_t seen = words_->bell.load(std::memory_order_acquire);
    if (words_->reached.load(std::memory_order_acquire) >= number) return true;
    if (ended) return false;
    futex_wait(words_->bell, seen, kLook);
  }
}

}  // namespace gpucomm
