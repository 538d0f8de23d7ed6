// The part of PointToPoint that moves arrays on devices: a header travels as a message without bytes, the
// elements go their own way.
#include <algorithm>

#include "engine/point_to_point.h"
#include "engine/shared_arena.h"

namespace gpucomm {

// The first such message opens the way, before anything is announced.
void PointToPoint::reside(Message& m, const Residence& residence) {
  if (!on_device_) on_device_ = open_device_messages(residence.way, transport_, residence.nccl, fate_);
  m.over_nccl = residence.way == DeviceWay::nccl;
  m.device = residence.device, m.stream = residence.stream;
  on_device_->stream_for(m);
  m.finished = std::make_shared<OwnEvent>(make_event(m.device));
  m.device->record(m.finished->get(), m.stream);
}

bool PointToPoint::move_on_device(Message& m) {
  const Stream stream = on_device_->stream_for(m);
  if (!m.headed) {
    if (m.sending && !m.offer) on_device_->offer(m);
    if (!pass_header(m)) return false;
    m.headed = moved_ = true;
    m.device->wait(stream, m.finished->get());
  }
  const size_t before = m.enqueued;
  const bool through = m.sending ? on_device_->send(m, stream) : on_device_->receive(m, stream);
  moved_ |= m.enqueued > before;
  if (!through) {
    silent_.store(std::max(silent_.load(std::memory_order_relaxed), on_device_->silent(m)),
                  std::memory_order_relaxed);
    return false;
  }
  m.device->record(m.finished->get(), stream);
  if (!on_device_->counted()) device_bytes_[m.sending] += m.bytes();
  return true;
}

void PointToPoint::abandon(Message& m, const Error& error) {
  if (m.device) on_device_->withdraw(m);
  finish(m, error);
}

// Behind end(): nothing begins any more, so no lock is held while this waits.
std::optional<Error> PointToPoint::leave() {
  std::optional<Error> undone;
  if (on_device_ && !fate_.failed()) undone = on_device_->settle();
  if (!on_device_) tell_nothing_open(*transport_, fate_.rank());
  transport_->leave();
  return undone;
}

void PointToPoint::check_enqueued(bool done, std::optional<Seconds> expired) {
  std::lock_guard lock(mutex_);
  if (!on_device_ || !on_device_->watched()) return;
  if (fate_.failed()) {  // by a collective, it may be
    drop(fate_.closed_error());
    throw fate_.closed_error();
  }
  try {
    if (!done) fate_.check_poison();
    on_device_->check(done, expired);
  } catch (const Error& error) {
    fault(error);
    throw;
  }
}

Transport::Counters PointToPoint::counters() const {
  Transport::Counters counters = transport_->counters();
  std::lock_guard lock(mutex_);
  counters.bytes_received += device_bytes_[0], counters.bytes_sent += device_bytes_[1];
  return counters;
}

}  // namespace gpucomm
