#include "engine/communicator.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/cpus.h"
#include "base/env.h"
#include "engine/progress.h"

namespace gpucomm {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);  // between two looks at peers, poison and the clock
constexpr size_t kMostPrograms = 512;

// Awake for a while, then asleep. The first turns only pause: a peer that runs on another core answers within
// them. From then on each turn offers the core to whoever else needs it; where ranks outnumber cores that may
// be the very rank that is waited for, so there from the start.
class Patience {
 public:
  explicit Patience(int world) : pauses_(world > usable_cpus() ? 0 : 200) {
    const int wish = env().spin_us;
    budget_ = std::chrono::microseconds(wish >= 0 ? wish : pauses_ ? 50 : 100);
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

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text.empty() ? "none" : text;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Transport> transport, std::string transport_name, int rank,
                           int world, Seconds timeout)
    : transport_(std::move(transport)),
      transport_name_(std::move(transport_name)),
      rank_(rank),
      world_(world),
      timeout_(timeout) {}

Communicator::~Communicator() {
  close();
  Progress::instance().forget(*this);
}

std::string Communicator::where() const { return concat(" (rank ", rank_, " of ", world_, ")"); }

void Communicator::check_open() const {
  if (!closed()) return;
  std::lock_guard lock(mutex_);
  fail(ErrorKind::closed, "this communicator is closed",
       fault_ ? concat(" after a fault: ", fault_->what()) : "", where());
}

std::shared_ptr<const Program> Communicator::program(const Shape& wish) {
  if (last_program_ && wish == last_shape_) return last_program_;
  const std::string key =
      concat(static_cast<int>(wish.collective), ' ', static_cast<int>(wish.op), ' ',
             static_cast<int>(wish.dtype), ' ', wish.count, ' ', wish.root, ' ', wish.in_place, ' ',
             wish.segments, ' ', wish.barrier, ' ', wish.algorithm, key_of_counts(wish));
  auto& entry = programs_[key];
  if (!entry) {
    Shape shape = wish;
    if (world_ == 1 && shape.algorithm == "auto") shape.algorithm = "direct";
    if (shape.algorithm != "auto" && !Registry<Algorithm>::find(shape.algorithm).offers(shape.collective))
      build_plan(shape.algorithm, {shape.collective});  // throws the sentence
    if (shape.algorithm == "auto" || !shape.segments) {
      const Choice& choice = choices_.find(shape, world_, links_);
      shape.algorithm = choice.algorithm, shape.segments = choice.segments;
    }
    auto compiled = std::make_shared<const Program>(compile(shape, world_, rank_));
    if (programs_.size() > kMostPrograms) programs_.clear();
    programs_[key] = compiled;
    last_program_ = compiled;
  } else {
    last_program_ = entry;
  }
  last_shape_ = wish;
  return last_program_;
}

std::shared_ptr<Work> Communicator::submit(const Shape& shape, const Arrays& arrays, Seconds timeout) {
  check_open();
  std::lock_guard lock(mutex_);
  auto compiled = program(shape);
  std::shared_ptr<Work> work =
      spare_ && spare_.use_count() == 1 ? std::move(spare_) : std::make_shared<Work>();
  work->program = std::move(compiled), work->arrays = arrays, work->timeout = timeout;
  work->sequence = ++sequence_;
  work->started = false, work->error.reset(), work->deadline.reset();
  work->done.store(false, std::memory_order_relaxed);
  queue_.push_back(work);
  pending_.fetch_add(1, std::memory_order_release);
  return work;
}

void Communicator::run(const Shape& shape, const Arrays& arrays, Seconds timeout) {
  auto work = submit(shape, arrays, timeout);
  drive(*work, Clock::time_point::max(), timeout);
  if (work->error) throw *work->error;
  std::lock_guard lock(mutex_);
  if (!spare_) spare_ = std::move(work);
}

std::shared_ptr<Work> Communicator::start(const Shape& shape, const Arrays& arrays, Seconds timeout) {
  auto work = submit(shape, arrays, timeout);
  drive_once();  // the first messages leave at once
  if (busy()) Progress::instance().add(*this);
  return work;
}

void Communicator::wait(const std::shared_ptr<Work>& work, std::optional<Seconds> timeout) {
  if (!work->done.load(std::memory_order_acquire)) {
    const auto deadline = timeout ? Clock::now() + std::chrono::duration_cast<Clock::duration>(*timeout)
                                  : Clock::time_point::max();
    drive(*work, deadline, timeout.value_or(work->timeout));
  }
  if (work->error) throw *work->error;
}

void Communicator::barrier(Seconds timeout) { run({.barrier = true, .algorithm = "one_shot"}, {}, timeout); }

bool Communicator::drive_once() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && advance_front();
}

// With the lock held.
bool Communicator::advance_front() {
  if (queue_.empty()) return false;
  Work& work = *queue_.front();
  try {
    if (!work.started) {
      check_poison();
      grow_scratch(work.program->scratch_bytes);
      work.started = true;
      work.execution.start(*work.program, *transport_, work.arrays, scratch_.get(), work.sequence);
      transport_->announce(work.execution.record());
    }
    const bool moved = work.execution.advance();
    if (!work.execution.done()) return moved;
    if (transport_->read_in_place()) {
      // After a fault a peer may reuse its array while we still read there: what we have may be anything.
      std::atomic_thread_fence(std::memory_order_acquire);
      check_poison();
    }
    transport_->complete(work.sequence);
    finish_front({});
  } catch (const Error& error) {
    fault(error);
  } catch (const std::exception& error) {
    fault(Error(ErrorKind::unavailable, concat(error.what(), where())));
  }
  return true;
}

// Once for all calls, on huge pages where the kernel gives them: first touch costs more than the call.
void Communicator::grow_scratch(size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  if (bytes <= scratch_bytes_) return;
  const size_t unit = bytes < kHugePage ? 64 : kHugePage, size = (bytes + unit - 1) / unit * unit;
  scratch_.reset(static_cast<std::byte*>(std::aligned_alloc(unit, size)));
  scratch_bytes_ = scratch_ ? size : 0;
  if (!scratch_) fail(ErrorKind::unavailable, "no memory for ", size, " bytes of scratch", where());
  if (unit == kHugePage) madvise(scratch_.get(), size, MADV_HUGEPAGE);
}

void Communicator::finish_front(const std::optional<Error>& error) {
  auto work = std::move(queue_.front());
  queue_.pop_front();
  work->error = error;
  work->done.store(true, std::memory_order_release);
  pending_.fetch_sub(1, std::memory_order_release);
  if (waiters_.load(std::memory_order_relaxed) > 0) transport_->wake_self();
}

// A fault ends this communicator, here and on every rank. With the lock held.
void Communicator::fault(const Error& error) {
  if (!fault_) fault_ = error;
  closed_.store(true, std::memory_order_release);
  transport_->poison({rank_, error.kind, error.what()});
  transport_->withdraw();
  while (!queue_.empty()) finish_front(error);
}

void Communicator::drive(Work& work, Clock::time_point deadline, Seconds patience_s) {
  waiters_.fetch_add(1, std::memory_order_acq_rel);
  Patience patience(world_);
  auto next_look = Clock::time_point::min();
  while (!work.done.load(std::memory_order_acquire)) {
    if (drive_once()) {
      patience.reset();
      continue;
    }
    if (patience.stay_awake()) continue;
    const uint32_t ticket = transport_->begin_sleep();
    if (!drive_once() && !work.done.load(std::memory_order_acquire)) {
      const auto now = Clock::now();
      if (now >= next_look) {
        next_look = now + kLook;
        if (interrupted_ && interrupted_()) interrupt();
        check(now >= deadline ? std::optional(patience_s) : std::nullopt);
      }
      auto nap = std::min<Clock::duration>(kLook, deadline - now);
      if (!work.done.load(std::memory_order_acquire))
        transport_->sleep(ticket, std::max(std::chrono::microseconds(100),
                                           std::chrono::duration_cast<std::chrono::microseconds>(nap)));
    }
    transport_->end_sleep();
  }
  if (waiters_.fetch_sub(1, std::memory_order_acq_rel) == 1 && busy()) Progress::instance().add(*this);
}

void Communicator::interrupt() {
  std::lock_guard lock(mutex_);
  if (!queue_.empty())
    fault(Error(ErrorKind::closed, concat("interrupted by a signal in ",
                                          describe(queue_.front()->execution.record()), where())));
}

void Communicator::check(std::optional<Seconds> expired) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || queue_.empty()) return;
  Work& work = *queue_.front();
  try {
    if (work.started) check_peers(work);
    if (expired) time_out(work, *expired);
    if (!work.started) return;
    const auto now = Clock::now();
    if (!work.deadline) work.deadline = now + std::chrono::duration_cast<Clock::duration>(work.timeout);
    if (now >= *work.deadline) time_out(work, work.timeout);
  } catch (const Error& error) {
    fault(error);
  }
}

void Communicator::check_poison() const {
  if (!transport_->poisoned()) return;
  const Poison poison = transport_->poison();
  const bool shared = poison.kind == ErrorKind::mismatch;  // its text names both sides already
  fail(poison.kind, shared ? "" : concat("rank ", poison.rank, " reports: "), poison.text);
}

void Communicator::check_peers(const Work& work) const {
  check_poison();
  const CallRecord& mine = work.execution.record();
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    if (transport_->arrived(peer) >= work.sequence) {
      const CallRecord theirs = transport_->call(peer, work.sequence);
      if (theirs.in_use && theirs.tag != mine.tag)
        fail(ErrorKind::mismatch, "the ranks do not make the same call: rank ", rank_, " of ", world_,
             " calls ", describe(mine), ", rank ", peer, " ", describe(theirs));
    }
    if (transport_->completed(peer) >= work.sequence) continue;
    const std::string why = transport_->gone(peer);
    if (why.empty()) continue;
    check_poison();  // it may have left a cause since we looked
    fail(ErrorKind::peer_lost, "rank ", peer, " ", why, " while rank ", rank_, " of ", world_, " waits in ",
         describe(mine));
  }
}

void Communicator::time_out(const Work& work, Seconds after) const {
  std::vector<std::string> came, missing, unfinished;
  for (int peer = 0; peer < world_; ++peer) {
    const std::string known = transport_->describe(peer);
    const std::string name = concat(peer, known.empty() ? "" : concat(" (", known, ")"));
    if (transport_->arrived(peer) < work.sequence) {
      missing.push_back(name);
    } else {
      came.push_back(std::to_string(peer));
      if (peer != rank_ && transport_->completed(peer) < work.sequence) unfinished.push_back(name);
    }
  }
  CallRecord record = work.program->record;
  record.sequence = work.sequence;
  fail(ErrorKind::timeout, describe(record), " timed out after ", after.count(), " s on rank ", rank_, " of ",
       world_, "; ranks that came: ", list(came), "; missing: ", list(missing),
       missing.empty() ? concat("; not finished: ", list(unfinished)) : "");
}

void Communicator::close() {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  std::lock_guard lock(mutex_);
  // First: whoever learns that the call has ended may reuse arrays that peers are reading.
  if (!queue_.empty()) {
    transport_->poison({rank_, ErrorKind::peer_lost, "closed its communicator with calls under way"});
    transport_->withdraw();
  }
  while (!queue_.empty())
    finish_front(
        Error(ErrorKind::closed, "the communicator was closed before this call had finished" + where()));
  transport_->leave();
}

void Communicator::set_links(const Links& links) {
  std::lock_guard lock(mutex_);
  links_ = links;
  links_known_.store(true, std::memory_order_release);
  choices_.clear();
  programs_.clear();
  last_program_.reset();
}

}  // namespace gpucomm
