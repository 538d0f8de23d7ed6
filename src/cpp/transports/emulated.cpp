#include "transports/emulated.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <ctime>

#include "base/clock.h"
#include "transports/mailbox.h"

namespace gpucomm {
namespace {

using namespace std::chrono_literals;
constexpr uint64_t kNoLinks = 1, kNever = ~uint64_t{0};
constexpr auto kSpin = 80us;  // a sleep ends that long before its time: timers are late by about as much

// The time on this thread's processor.
uint64_t processor_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// The rank's own time, behind the clock. The machine wakes a rank late, and lets it wait for a processor, the
// longer the busier it is; on a path of many messages that would add up. So what a rank does after a wait is
// dated at what it waited for, and what it computes takes the processor time that it takes.
class OwnTime {
 public:
  uint64_t now() {
    const uint64_t processor = processor_ns();
    // A new thread may have an ended one's name.
    if (thread_ == pthread_self() && processor > processor_) now_ += processor - processor_;
    mark(processor);
    return now_ = std::min(now_, steady_ns());
  }
  void wait() {
    if (!waits_) now();
    waits_ = true;
  }
  // Something of that time, which is past, was noticed.
  void notice(uint64_t stamp) {
    if (waits_)
      mark(processor_ns());
    else
      now();
    now_ = std::max(now_, stamp);
    waits_ = false;
  }
  void reset() {
    mark(processor_ns());
    now_ = steady_ns(), waits_ = false;
  }

 private:
  void mark(uint64_t processor) { processor_ = processor, thread_ = pthread_self(); }

  uint64_t now_ = 0, processor_ = 0;
  pthread_t thread_{};  // whose processor time that is
  bool waits_ = false;
};

class Emulated : public Transport {
 public:
  Emulated(std::unique_ptr<Transport> inner, Clocks* ports, const EmulatedLinks& links, int rank, int world)
      : inner_(std::move(inner)), ports_(ports, links, rank, world), due_(2 * world) {
    for (auto& due : due_) due.store(kNever, std::memory_order_relaxed);
  }

  bool send(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) override {
    auto& due = due_[2 * peer];
    if (!progress.comes) progress.comes = time_.now();
    if (!progress.there)
      if (const uint64_t later = ports_.take(peer, bytes, steady_ns(), progress)) return wait(due, later);
    if (!inner_->send(peer, tag, data, bytes, progress)) return wait(due, kNever);
    // All of it is on its way, but the port is not free for the next message.
    const uint64_t now = steady_ns();
    if (now < progress.left) return wait(due, progress.left);
    time_.notice(progress.left);
    due.store(kNever, std::memory_order_relaxed);
    return true;
  }

  const Chunk* peek(int peer) override {
    auto& due = due_[2 * peer + 1];
    const Chunk* chunk = inner_->peek(peer);
    const uint64_t now = chunk ? steady_ns() : 0;
    if (!chunk || chunk->stamp > now) {
      wait(due, chunk ? chunk->stamp : kNever);
      return nullptr;
    }
    time_.notice(chunk->stamp);
    due.store(kNever, std::memory_order_relaxed);
    return chunk;
  }

  bool emulates() const override { return true; }
  bool attaches() const override { return false; }
  // Work on devices knows nothing of these links.
  Common* common() override { return nullptr; }
  DeviceWords* device_words() override { return nullptr; }
  bool waits_long() const override {
    constexpr uint64_t kLongNs = 200'000;
    const uint64_t next = due();
    return next != kNever && next > steady_ns() + kLongNs;
  }

  void sleep(uint32_t ticket, std::chrono::microseconds at_most) override {
    const uint64_t due = this->due(), now = steady_ns();
    if (due <= now) return;
    const auto left = std::chrono::nanoseconds(std::min<uint64_t>(due - now, 3600'000'000'000));
    if (left > kSpin) {
      const auto nap = std::chrono::duration_cast<std::chrono::microseconds>(left - kSpin);
      inner_->sleep(ticket, std::clamp(nap, 1us, at_most));
    } else {
      while (steady_ns() < due) sched_yield();
    }
  }

  void announce(const CallRecord& record) override {
    time_.reset();
    inner_->announce(record);
  }

  bool flush(int peer) override { return inner_->flush(peer); }
  void refuse(const Refusal& refusal) override { inner_->refuse(refusal); }
  Refusal refusal(int rank) const override { return inner_->refusal(rank); }
  void tell(int peer, uint64_t word) override { inner_->tell(peer, word); }
  uint64_t told(int peer) override { return inner_->told(peer); }
  void consume(int peer) override { inner_->consume(peer); }
  void keep(int peer, const Kept& kept) override { inner_->keep(peer, kept); }
  bool fetch(int peer, std::byte* target, CopyBytes copy) override {
    return inner_->fetch(peer, target, copy);
  }
  bool answer(int peer, const std::byte* from) override { return inner_->answer(peer, from); }
  bool read_in_place() override { return inner_->read_in_place(); }
  std::string reader(int rank) const override { return inner_->reader(rank); }
  void withdraw() override { inner_->withdraw(); }
  void look() override { inner_->look(); }
  bool show() override { return inner_->show(); }
  uint64_t agree(uint64_t word) override { return inner_->agree(word); }
  void wake(int peer) override { inner_->wake(peer); }
  uint32_t begin_sleep() override { return inner_->begin_sleep(); }
  void end_sleep() override { inner_->end_sleep(); }
  void wake_self() override { inner_->wake_self(); }
  void complete(uint64_t sequence) override { inner_->complete(sequence); }
  CallRecord call(int rank, uint64_t sequence) const override { return inner_->call(rank, sequence); }
  uint64_t arrived(int rank) const override { return inner_->arrived(rank); }
  uint64_t completed(int rank) const override { return inner_->completed(rank); }
  void leave() override { inner_->leave(); }
  std::string gone(int rank) const override { return inner_->gone(rank); }
  std::string describe(int rank) const override { return inner_->describe(rank); }
  void poison(const Poison& poison) override { inner_->poison(poison); }
  bool poisoned() const override { return inner_->poisoned(); }
  Poison poison() const override { return inner_->poison(); }
  Clocks* clocks() override { return inner_->clocks(); }
  Census* census() override { return inner_->census(); }
  Counters counters() const override { return inner_->counters(); }
  std::shared_ptr<Heap> heap() override { return inner_->heap(); }
  std::string heap_note() const override { return inner_->heap_note(); }

 private:
  // The first that is known.
  uint64_t due() const {
    uint64_t due = kNever;
    for (const auto& d : due_) due = std::min(due, d.load(std::memory_order_relaxed));
    return due;
  }

  bool wait(std::atomic<uint64_t>& due, uint64_t until) {
    due.store(until, std::memory_order_relaxed);
    time_.wait();
    return false;
  }

  std::unique_ptr<Transport> inner_;
  LinkPorts ports_;
  OwnTime time_;
  // When what this rank waits for will be there, to and from each peer; sleepers read it without a lock.
  std::vector<std::atomic<uint64_t>> due_;
};

std::unique_ptr<Transport> open_alone(const Endpoint&) {
  fail(ErrorKind::invalid_argument,
       "transport 'emulated' goes around 'local' or 'shm': open one of these and give it links");
}

const Registry<TransportEntry>::Add add{
    "emulated", {"slower links around local and shm, for experiments", "links=, no root", open_alone}};

void check_same(Transport& transport, const Endpoint& endpoint, const std::optional<EmulatedLinks>& links) {
  constexpr int kRankBits = 6;
  static_assert(kMaxWorld <= 1 << kRankBits);
  const uint64_t own = (links ? fingerprint(*links) : kNoLinks) << kRankBits;
  const uint64_t first = transport.agree(own | endpoint.rank);
  if (first >> kRankBits << kRankBits == own) return;
  fail(ErrorKind::mismatch, "rank ", endpoint.rank, " of ", endpoint.world,
       links ? " was given emulated links" : " was given no emulated links", ", rank ",
       first & ((1 << kRankBits) - 1), " was not given the same: give the same links to all ranks");
}

}  // namespace

std::unique_ptr<Transport> open_transport(const std::string& name, const Endpoint& endpoint,
                                          const std::optional<EmulatedLinks>& links, Clocks* ports) {
  auto transport = Registry<TransportEntry>::find(name).open(endpoint);
  check_same(*transport, endpoint, links);
  if (!links) return transport;
  if (!ports) ports = transport->clocks();
  if (!ports) fail(ErrorKind::invalid_argument, "transport '", name, "' cannot carry emulated links");
  return std::make_unique<Emulated>(std::move(transport), ports, *links, endpoint.rank, endpoint.world);
}

}  // namespace gpucomm
