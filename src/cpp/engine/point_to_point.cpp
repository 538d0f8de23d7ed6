#include "engine/point_to_point.h"

#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "base/cpus.h"
#include "engine/progress.h"

namespace gpucomm {
namespace {

// The tag says what the message is, so that a receiver that expects another one can name it.
constexpr int kNumberShift = 48, kDtypeShift = 43;
constexpr uint64_t kOnDevice = uint64_t{1} << 42, kOverNccl = kOnDevice >> 1, kCountMask = kOverNccl - 1;
// Longer messages than the slots between two ranks ever hold wait for their receiver anyway.
constexpr size_t kBuffered = 2 << 20;
static_assert(kDtypes <= 1 << (kNumberShift - kDtypeShift));

uint64_t tag_of(const Message& m) {
  return m.number << kNumberShift | static_cast<uint64_t>(m.dtype) << kDtypeShift |
         (m.device ? kOnDevice : 0) | (m.over_nccl ? kOverNccl : 0) | (m.count & kCountMask);
}

std::string elements(uint64_t tag) {
  const auto dtype = static_cast<Dtype>(tag >> kDtypeShift & ((1 << (kNumberShift - kDtypeShift)) - 1));
  return concat(tag & kCountMask, " ", name_of(dtype), tag & kOnDevice ? " on a device" : "",
                tag & kOverNccl ? " over NCCL" : "");
}

std::string describe(bool sending, uint64_t number, int peer) {
  return concat(sending ? "send #" : "recv #", number, sending ? " to rank " : " from rank ", peer);
}

std::string describe(const Message& m) {
  return concat(describe(m.sending, m.number, m.peer), " (", elements(tag_of(m)), ")");
}

size_t footprint(const Message& m) { return 2 * m.bytes(); }

// One number for each end of each message of a rank.
uint64_t end_of(bool sending, uint64_t number, int peer) { return (number << 32 | peer << 1) + sending; }

}  // namespace

std::string describe_message(const CallRecord& r) {
  const bool sending = r.message > 0;
  return concat(sending ? "send #" : "recv #", std::abs(r.message), sending ? " to rank " : " from rank ",
                r.root, " (", r.count, " ", name_of(static_cast<Dtype>(r.dtype)),
                r.on_device ? " on a device" : "", r.on_device == 2 ? " over NCCL)" : ")");
}

PointToPoint::PointToPoint(std::shared_ptr<Transport> transport, Fate& fate, int ranks_here)
    : Drivable(std::move(transport), ranks_here),
      fate_(fate),
      queues_(2 * fate.world()),
      numbers_(2 * fate.world()) {}

std::shared_ptr<Message> PointToPoint::start(bool sending, int peer, Dtype dtype, size_t count,
                                             std::byte* data, Seconds timeout, const Residence& residence) {
  fate_.check_open();
  auto message = std::make_shared<Message>();
  message->sending = sending, message->peer = peer, message->dtype = dtype, message->count = count;
  message->data = data, message->timeout = timeout;
  std::lock_guard lock(mutex_);
  if (residence.device) reside(*message, residence);
  const int index = 2 * peer + sending;
  message->number = ++numbers_[index], message->call = ++calls_;
  if (refused_ == end_of(sending, message->number, peer)) transport_->refuse({}), refused_ = 0;
  announce(*message);
  if (queues_[index].empty()) active_.push_back(index);
  queues_[index].push_back(message);
  began();
  try {
    fate_.check_poison();
  } catch (const Error& error) {
    fault(error);
    return message;
  }
  advance();
  return message;
}

void PointToPoint::refuse(bool sending, int peer, const std::string& why) {
  std::lock_guard lock(mutex_);
  if (fate_.closed()) return;
  const uint64_t next = numbers_[2 * peer + sending] + 1;
  refused_ = end_of(sending, next, peer);
  transport_->refuse({refused_, refusals_.count(refused_), Clock::now(),
                      concat(describe(sending, next, peer), " was refused: ", why)});
}

void PointToPoint::hand_over() {
  if (busy()) Progress::instance().add(*this);
}

void PointToPoint::announce(const Message& m) {
  CallRecord record;
  record.sequence = m.call, record.tag = tag_of(m), record.count = m.count;
  record.root = m.peer, record.dtype = static_cast<uint8_t>(m.dtype), record.in_use = 1;
  record.on_device = m.over_nccl ? 2 : m.device != nullptr;
  record.message = static_cast<int64_t>(m.number) * (m.sending ? 1 : -1);
  transport_->announce(record);
}

bool PointToPoint::drive_once() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && advance();
}

// With the lock held, as all below.
bool PointToPoint::advance() {
  if (active_.empty()) return false;
  // No memory is touched once it is closed. By a collective's fault: the messages end here; else who closes
  // it is about to end them, and says whether there were any.
  if (fate_.closed()) return fate_.failed() && drop(fate_.closed_error());
  try {
    return advance_all();
  } catch (const Error& error) {
    fault(error);
  } catch (const std::exception& error) {
    fault(Error(ErrorKind::unavailable, concat(error.what(), fate_.where())));
  }
  return true;
}

bool PointToPoint::advance_all() {
  moved_ = false;
  silent_.store(false, std::memory_order_relaxed);
  for (size_t i = 0; i < active_.size();) {
    Queue& queue = queues_[active_[i]];
    while (!queue.empty() && move(*queue.front())) finish_front(queue);
    if (queue.empty())
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
  }
  return moved_;
}

// True when the message is through.
bool PointToPoint::move(Message& m) {
  if (m.device) return move_on_device(m);
  if (!m.sending) return receive(m);
  const size_t before = m.progress.moved;
  if (m.bytes() > kBuffered) m.progress.receiver = Receiver::stores;
  m.progress.footprint = footprint(m);
  const bool through =
      transport_->send(m.peer, tag_of(m), m.data, m.bytes(), m.progress) && transport_->flush(m.peer);
  moved_ |= through || m.progress.moved > before;
  return through;
}

bool PointToPoint::receive(Message& m) {
  const CopyBytes copy = footprint(m) >= last_level_cache() ? copy_non_temporal : copy_bytes;
  while (!m.progress.begun || m.progress.moved < m.bytes()) {
    const Chunk* chunk = expect(m);
    if (!chunk) return false;
    std::byte* const target = m.data + m.progress.moved;
    if (chunk->remote && !transport_->fetch(m.peer, target, copy)) return false;
    if (chunk->data) copy(target, chunk->data, chunk->bytes);
    m.progress.moved += chunk->bytes, m.progress.begun = moved_ = true;
    transport_->consume(m.peer);
  }
  fate_.check_read_in_place(*transport_);
  return true;
}

// What comes next from the peer, which must be of this message; nullptr: nothing yet.
const Chunk* PointToPoint::expect(const Message& m) {
  const Chunk* chunk = transport_->peek(m.peer);
  if (chunk && chunk->tag != tag_of(m))
    fail(ErrorKind::mismatch, "the two ends of a message differ: rank ", m.peer, " sends ",
         elements(chunk->tag), " (send #", m.number, " to rank ", fate_.rank(), "), rank ", fate_.rank(),
         " of ", fate_.world(), " receives ", elements(tag_of(m)));
  return chunk;
}

// Of a message on a device.
bool PointToPoint::pass_header(Message& m) {
  if (m.sending)
    return transport_->send(m.peer, tag_of(m), reinterpret_cast<const std::byte*>(m.note.data()),
                            m.note.size(), m.progress) &&
           transport_->flush(m.peer);
  const Chunk* chunk = expect(m);
  if (!chunk) return false;
  if (chunk->bytes) m.note.assign(reinterpret_cast<const char*>(chunk->data), chunk->bytes);
  transport_->consume(m.peer);
  return true;
}

void PointToPoint::finish_front(Queue& queue) {
  const auto message = std::move(queue.front());
  queue.pop_front();
  moved_ = true;
  // Messages end in any order: all up to the oldest one under way are complete.
  uint64_t complete = calls_;
  for (int i : active_)
    if (!queues_[i].empty()) complete = std::min(complete, queues_[i].front()->call - 1);
  transport_->complete(complete);
  finish(*message, {});
}

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
    if (poisoned) fate_.check_poison();
    for (int index : std::vector(active_))
      if (!queues_[index].empty()) look(std::shared_ptr(queues_[index].front()));
    if (expired && !waited->done.load(std::memory_order_acquire))
      time_out(static_cast<const Message&>(*waited), *expired);
  } catch (const Error& error) {
    fault(error);
  }
}

// A peer that is gone may have left the message behind: it counts, also where its links still hold it up.
void PointToPoint::look(const std::shared_ptr<Message>& m) {
  const auto now = Clock::now();
  if (!m->deadline) m->deadline = now + std::chrono::duration_cast<Clock::duration>(m->timeout);
  if (!fate_.control().gone(m->peer).empty() && !advance_all() && !matched(*m, true))
    fate_.check_peer(m->peer, describe(*m));
  check_refusal(*m);
  if (now >= *m->deadline && !m->done.load(std::memory_order_acquire)) time_out(*m, m->timeout);
}

void PointToPoint::check_refusal(const Message& m) const {
  Refusal theirs = transport_->refusal(m.peer);
  if (theirs.sequence != end_of(!m.sending, m.number, fate_.rank())) return;
  theirs.sequence = end_of(m.sending, m.number, m.peer);
  if (!refusals_.alone(theirs, !fate_.control().gone(m.peer).empty())) return;
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
  std::string stopped;  // whom the peer may wait for in turn
  for (int rank = 0; rank < fate_.world(); ++rank)
    if (const std::string state = fate_.control().describe(rank);
        rank != m.peer && state.ends_with(", stopped"))
      stopped += concat("; rank ", rank, " (", state, ") does nothing");
  fail(ErrorKind::timeout, describe(m), " timed out after ", after.count(), " s on rank ", fate_.rank(),
       " of ", fate_.world(), ": rank ", m.peer, known.empty() ? "" : concat(" (", known, ")"),
       matched(m, false) ? " has called" : " has not called", m.sending ? " recv" : " send", " for it",
       stopped);
}

}  // namespace gpucomm
