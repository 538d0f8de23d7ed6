// What ends a communicator, and how it is found: faults, ranks that are missing or make another call, and the
// end itself.
#include <ctime>

#include "engine/communicator.h"
#include "engine/shared_arena.h"

namespace gpucomm {
namespace {

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text.empty() ? "none" : text;
}

}  // namespace

// With the lock held.
Error Communicator::fault(const Error& error) {
  const Error told = coding_error().value_or(error);  // what others report comes of it
  fate_.fail(told);
  if (on_device_) on_device_->fault();
  transport_->withdraw();
  while (!queue_.empty()) finish_front(told);
  return told;
}

void Communicator::interrupt() {
  std::lock_guard lock(mutex_);
  if (!queue_.empty())
    fault(Error(ErrorKind::closed,
                concat("interrupted by a signal in ", describe(record_of(*queue_.front())), fate_.where())));
}

void Communicator::check(const Pending* waited, std::optional<Seconds> expired) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || queue_.empty()) return;
  try {
    transport_->look();
    // A rank that has ended this call may fail in the next one before we look: what it sent then ends ours
    // too.
    const bool poisoned = transport_->poisoned();
    while (poisoned && advance_front()) {
    }
    if (queue_.empty()) return;
    const bool late = silent() == Silent::own_device;  // what that still does counts too
    if (poisoned && !late) fate_.check_poison();
    Work& work = *queue_.front();
    if (work.started) check_peers(work);
    if (expired && !waited->done.load(std::memory_order_acquire)) time_out(work, *expired);
    if (!work.started) return;
    const auto now = Clock::now();
    if (!work.deadline) work.deadline = now + clock_time(work.timeout);
    if (now >= *work.deadline) time_out(work, work.timeout);
  } catch (const std::exception& error) {
    fault(fate_.error_of(error));
  }
}

CallRecord Communicator::record_of(const Work& work) const {
  if (work.program) return tagged(*work.program, work.sequence, work.label);
  CallRecord record = make_record(work.shape);
  record.sequence = work.sequence, record.label = work.label;
  return record;
}

void Communicator::check_alike(const CallRecord& mine, int peer) const {
  if (transport_->arrived(peer) < mine.sequence) return;
  const CallRecord theirs = transport_->call(peer, mine.sequence);
  if (theirs.in_use && theirs.tag != mine.tag)
    fail(ErrorKind::mismatch, "the ranks do not make the same call: rank ", rank_, " of ", world_, " calls ",
         describe(mine), ", rank ", peer, " ", describe(theirs));
}

void Communicator::check_peers(const Work& work) const {
  const CallRecord mine = record_of(work);
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    check_alike(mine, peer);
    check_refusal(work, peer);
    // In this order: it may complete the call and leave while we look.
    if (transport_->gone(peer).empty() || transport_->completed(peer) >= work.sequence) continue;
    fate_.check_peer(peer, describe(mine));
  }
}

void Communicator::check_waiting(const std::vector<int>& ranks, const std::string& call) {
  std::lock_guard lock(mutex_);
  const bool open = !fate_.closed();
  try {
    transport_->look();
    if (open) fate_.check_poison();
    for (const int peer : ranks)
      if (const std::string why = transport_->gone(peer); peer != rank_ && !why.empty())
        fail(ErrorKind::peer_lost, "rank ", peer, " ", why, " while rank ", rank_, " of ", world_,
             " waits for it in ", call);
  } catch (const Error& error) {
    throw open ? fault(error) : error;
  }
}

void Communicator::check_all_alike(const CallRecord& mine) const {
  for (int peer = 0; peer < world_ && mine.in_use; ++peer) check_alike(mine, peer);
}

// Of a call in which this rank only sends: whether those that have come make it too. That costs lines which
// they write, and messages between nodes, so not each time when such calls follow one another. What ranks of
// other nodes say of it may come only after its end: it is compared in a later such call.
void Communicator::check_unheard(const Work& work) {
  constexpr int kCalls = 16;
  constexpr uint64_t kPauseMs = 50;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const uint64_t now_ms = now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
  if (++unheard_ < kCalls && now_ms < looked_ms_ + kPauseMs) return;
  unheard_ = 0, looked_ms_ = now_ms;
  transport_->look();
  check_all_alike(record_of(work));
  if (shown_) check_all_alike(transport_->call(rank_, shown_));
  if (now_ms < shown_ms_ + kPauseMs) return;
  shown_ms_ = now_ms;
  shown_ = transport_->show() ? work.sequence : 0;
}

void Communicator::refuse(const std::string& call, const std::string& why) {
  std::lock_guard lock(mutex_);
  if (fate_.closed()) return;
  const uint64_t next = sequence_ + 1;
  refusals_.tell(*transport_, next, concat(call, " #", next, " was refused: ", why));
}

void Communicator::check_refusal(const Work& work, int peer) const {
  const Refusal theirs = transport_->refusal(peer);
  if (!theirs.sequence || theirs.sequence > work.sequence || transport_->arrived(peer) >= theirs.sequence)
    return;
  if (!refusals_.alone(theirs, !transport_->gone(peer).empty(), work)) return;
  fail(ErrorKind::mismatch, "the ranks do not make the same call: rank ", rank_, " of ", world_, " calls ",
       describe(record_of(work)), ", rank ", peer, "'s ", theirs.text);
}

void Communicator::time_out(const Work& work, Seconds after) const {
  fate_.check_poison();  // this rank may have been stopped since it looked, while others have timed out
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
  fail(ErrorKind::timeout, describe(record_of(work)), " timed out after ", after.count(), " s on rank ",
       rank_, " of ", world_, "; ranks that came: ", list(came), "; missing: ", list(missing),
       missing.empty() ? concat("; not finished: ", list(unfinished)) : "");
}

// Who has only sent, the root of short messages say, may have ended a call that no other rank makes.
void Communicator::check_ended_calls() {
  std::lock_guard lock(mutex_);
  if (fate_.closed()) return;
  try {
    const uint64_t first = sequence_ > kRememberedCalls ? sequence_ - kRememberedCalls : 0;
    for (uint64_t sequence = first + 1; queue_.empty() && sequence <= sequence_; ++sequence)
      check_all_alike(transport_->call(rank_, sequence));
  } catch (const Error& error) {
    throw fault(error);
  }
}

void Communicator::close() {
  fate_.close();
  if (left_.exchange(true)) return;
  const Error error(ErrorKind::closed,
                    "the communicator was closed before this call had finished" + fate_.where());
  end(error), messages_.end(error);
  std::optional<Error> undone;
  if (on_device_ && !fate_.failed()) undone = on_device_->settle();
  if (!on_device_) tell_nothing_open(*transport_, rank_);
  const std::optional<Error> of_messages = messages_.leave();
  {
    const std::lock_guard lock(mutex_);
    if (on_device_ && !fate_.failed()) untold_ = coding_error();
    if (!untold_) untold_ = undone ? undone : of_messages;
  }
  transport_->leave();
}

void Communicator::abort() {
  give_up(Error(ErrorKind::closed, concat("rank ", rank_, " of ", world_, " called abort()")));
}

void Communicator::give_up(const Error& error) {
  if (closed()) return;
  fate_.fail(error);
  end(error);
  messages_.end(error);
}

void Communicator::end(const Error& error) {
  std::lock_guard lock(mutex_);
  if (on_device_) fate_.failed() ? on_device_->fault() : on_device_->leave();
  if (queue_.empty()) return;
  fate_.abandon();
  transport_->withdraw();
  while (!queue_.empty()) finish_front(error);
}

}  // namespace gpucomm
