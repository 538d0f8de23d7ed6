#include "devices/host_event.h"

#include "base/futex.h"
#include "base/process.h"
#include "devices/shared_memory.h"

namespace gpucomm {

struct HostMark::Words {
  std::atomic<uint64_t> recorded, reached;  // how often
  std::atomic<uint32_t> bell;
  long long pid;  // of the maker; 0: not shared
  Birth birth;
};

void HostMark::reach() const {
  words_->reached.store(number_, std::memory_order_release);
  words_->bell.fetch_add(1, std::memory_order_acq_rel);
  futex_wake(words_->bell);
}

bool HostMark::done() const { return words_->reached.load(std::memory_order_acquire) >= number_; }

bool HostMark::wait() const {
  // CUDA waits for ever, but these threads must end with their process.
  constexpr std::chrono::seconds kLook{3};
  for (bool ended = false;; ended = maker_ended()) {
    const uint32_t seen = words_->bell.load(std::memory_order_acquire);
    if (done()) return true;
    if (ended) return false;
    futex_wait(words_->bell, seen, kLook);
  }
}

long long HostMark::maker() const { return words_->pid; }

bool HostMark::maker_ended() const {
  if (!words_->pid || words_->pid == getpid()) return false;
  return process_state(words_->pid).lost(words_->birth);
}

HostEvent::HostEvent() : words_(std::make_shared<HostMark::Words>()) {}

HostEvent::HostEvent(const std::string& handle) : handle_(handle), shared_(true) {
  auto memory = std::make_shared<SharedMemory>(handle);
  words_ = {memory, reinterpret_cast<HostMark::Words*>(memory->data())};
}

std::shared_ptr<HostEvent> HostEvent::make_shared() {
  auto memory = std::make_shared<SharedMemory>(sizeof(HostMark::Words));
  auto event = std::make_shared<HostEvent>();
  event->words_ = {memory, reinterpret_cast<HostMark::Words*>(memory->data())};
  event->words_->pid = getpid(), event->words_->birth = own_birth();
  event->handle_ = memory->handle(), event->shared_ = true;
  return event;
}

HostMark HostEvent::record() {
  std::lock_guard lock(mutex_);
  if (!shared_) words_ = std::make_shared<HostMark::Words>();
  return {words_, words_->recorded.fetch_add(1, std::memory_order_acq_rel) + 1};
}

HostMark HostEvent::latest() const {
  std::lock_guard lock(mutex_);
  return {words_, words_->recorded.load(std::memory_order_acquire)};
}

}  // namespace gpucomm
