// What ends messages before they are through: faults, peers that are missing or refuse, deadlines.
#include <utility>

#include "engine/message_text.h"
#include "engine/point_to_point.h"

namespace gpucomm {

void PointToPoint::end(const Error& error) {
  std::lock_guard lock(mutex_);
  drop(error);
}

bool PointToPoint::drop(const Error& error) {
  const bool unfinished = !active_.empty();
  if (unfinished) fate_.abandon(), transport_->withdraw();
  for (int index : std::exchange(active_, {}))
    for (Queue queue = std::exchange(queues_[index], {}); !queue.empty(); queue.pop_front())
      abandon(*queue.front(), error);
  if (on_device_) fate_.failed() ? on_device_->fault() : on_device_->leave();
  return unfinished;
}

void PointToPoint::fault(const Error& error) {
  fate_.fail(error);
  drop(error);
}

void PointToPoint::interrupt() {
  std::lock_guard lock(mutex_);
  if (!active_.empty())
    fault(Error(ErrorKind::closed, concat("interrupted by a signal in ",
                                          describe(*queues_[active_[0]].front()), fate_.where())));
}

void PointToPoint::check(const Pending* waited, std::optional<Seconds> expired) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || active_.empty()) return;
  try {
    transport_->look();
    fate_.control().look();
    const bool poisoned = fate_.control().poisoned();  // what was sent before that still counts
    while (poisoned && advance_all()) {
    }
    if (active_.empty()) return;
    const bool late = silent() == Silent::own_device;  // so does what that still does
    if (poisoned && !late) fate_.check_poison();
    for (int index : std::vector(active_))
      if (!queues_[index].empty()) look(std::shared_ptr(queues_[index].front()));
    if (expired && !waited->done.load(std::memory_order_acquire))
      time_out(static_cast<const Message&>(*waited), *expired);
  } catch (const std::exception& error) {
    fault(fate_.error_of(error));
  }
}

// A peer that is gone may have left the message behind: it counts, also where its links still hold it up.
void PointToPoint::look(const std::shared_ptr<Message>& m) {
  const auto now = Clock::now();
  if (!m->deadline) m->deadline = now + clock_time(m->timeout);
  if (!fate_.control().gone(m->peer).empty() && !advance_all() && !matched(*m, true))
    fate_.check_peer(m->peer, describe(*m));
  check_refusal(*m);
  if (now >= *m->deadline && !m->done.load(std::memory_order_acquire)) time_out(*m, m->timeout);
}

void PointToPoint::check_refusal(const Message& m) const {
  Refusal theirs = transport_->refusal(m.peer);
  if (theirs.sequence != end_of(!m.sending, m.number, fate_.rank())) return;
  theirs.sequence = end_of(m.sending, m.number, m.peer);
  if (!refusals_.alone(theirs, !fate_.control().gone(m.peer).empty(), m)) return;
  fail(ErrorKind::mismatch, "the two ends of a message differ: rank ", fate_.rank(), " of ", fate_.world(),
       " calls ", describe(m), ", rank ", m.peer, "'s ", theirs.text);
}

// Whether the peer has made the call that belongs to this one, as far as its last calls are known, and has
// completed it. Those of one pair and direction complete in order, so a later one tells it too.
bool PointToPoint::matched(const Message& m, bool complete) const {
  const uint64_t last = transport_->arrived(m.peer), done = transport_->completed(m.peer);
  for (uint64_t call = last; call && call + kRememberedCalls > last; --call) {
    const CallRecord record = transport_->call(m.peer, call);
    const bool pair = record.in_use && record.root == fate_.rank() && (record.message > 0) != m.sending;
    if (pair && static_cast<uint64_t>(std::abs(record.message)) >= m.number && (!complete || call <= done))
      return true;
  }
  return false;
}

void PointToPoint::time_out(const Message& m, Seconds after) const {
  fate_.check_poison();
  const std::string known = fate_.control().describe(m.peer);
  fail(ErrorKind::timeout, describe(m), " timed out after ", after.count(), " s on rank ", fate_.rank(),
       " of ", fate_.world(), ": rank ", m.peer, known.empty() ? "" : concat(" (", known, ")"),
       matched(m, false) ? " has called" : " has not called", m.sending ? " recv" : " send", " for it",
       stopped_ranks(fate_.control(), fate_.world(), m.peer));  // for whom the peer may wait in turn
}

}  // namespace gpucomm
