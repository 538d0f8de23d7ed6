#include "engine/point_to_point.h"

#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "base/cpus.h"
#include "engine/message_text.h"
#include "engine/progress.h"

namespace gpucomm {
namespace {

// Longer messages than the slots between two ranks ever hold wait for their receiver anyway.
constexpr size_t kBuffered = 2 << 20;

size_t footprint(const Message& m) { return 2 * m.bytes(); }

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<Transport> transport, Fate& fate, int ranks_here)
    : Drivable(std::move(transport), ranks_here),
      fate_(fate),
      queues_(2 * fate.world()),
      numbers_(2 * fate.world()) {}

std::shared_ptr<Message> PointToPoint::start(bool sending, int peer, Dtype dtype, size_t count,
                                             std::byte* data, Seconds timeout, const Residence& residence) {
  auto message = std::make_shared<Message>();
  message->sending = sending, message->peer = peer, message->dtype = dtype, message->count = count;
  message->data = data, message->timeout = timeout;
  std::lock_guard lock(mutex_);
  fate_.check_open();  // close() ends what is in the queues under this lock
  if (residence.device) reside(*message, residence);
  const int index = 2 * peer + sending;
  message->number = ++numbers_[index], message->call = ++calls_;
  refusals_.take_back(*transport_, end_of(sending, message->number, peer));
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

void PointToPoint::refuse(bool sending, int peer, const std::string& why, int source) {
  std::lock_guard lock(mutex_);
  if (fate_.closed()) return;
  if (source >= 0) refusals_.count(end_of(false, numbers_[2 * source] + 1, source));
  const uint64_t next = numbers_[2 * peer + sending] + 1;
  refusals_.tell(*transport_, end_of(sending, next, peer),
                 concat(describe(sending, next, peer), " was refused: ", why));
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
  } catch (const std::exception& error) {
    fault(fate_.error_of(error));
  }
  return true;
}

bool PointToPoint::advance_all() {
  moved_ = false;
  silent_.store(Silent::nothing, std::memory_order_relaxed);
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
    const size_t bytes = chunk->bytes;
    if (!transport_->take(m.peer, *chunk, m.data + m.progress.moved, copy)) return false;
    m.progress.moved += bytes, m.progress.begun = moved_ = true;
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

}  // namespace gpucomm
