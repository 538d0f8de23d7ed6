#include "engine/offered_messages.h"

#include <algorithm>
#include <utility>

#include "base/soon.h"

namespace gpucomm {

void Offers::put(int from, int to, std::shared_ptr<Offer> offer) {
  std::lock_guard lock(mutex_);
  queues_[from * world_ + to].push_back(std::move(offer));
}

std::shared_ptr<Offer> Offers::take(int from, int to) {
  std::lock_guard lock(mutex_);
  auto& queue = queues_[from * world_ + to];
  GPUCOMM_CHECK(!queue.empty());  // it was put there before its header left
  auto offer = std::move(queue.front());
  queue.pop_front();
  return offer;
}

Stream OfferedMessages::stream_for(const Message& m) {
  OwnStream& stream = streams_[{m.device.get(), m.peer, m.sending}];
  if (!stream) stream = make_stream(m.device);
  return stream.get();
}

void OfferedMessages::offer(Message& m) {
  m.offer = std::make_shared<Offer>();
  m.offer->data = m.data, m.offer->device = m.device, m.offer->ready = m.finished;
  offers_->put(rank_, m.peer, m.offer);
}

// When the receiver has enqueued its copy.
bool OfferedMessages::send(Message& m, Stream stream) {
  std::lock_guard lock(m.offer->mutex);
  if (!m.offer->taken) return false;
  m.device->wait(stream, m.offer->read.get());
  return true;
}

// Where the sender's array is on another device.
void OfferedMessages::reach(const Message& m, const Offer& offer) const {
  m.device->reach(*offer.device);
  const std::string why = m.bytes() ? offer.device->withholds(offer.data) : "";
  if (!why.empty())
    fail(ErrorKind::unavailable, "rank ", rank_, " receives on ", m.device->name(), ", but rank ", m.peer,
         " sends from ", offer.device->name(), ", and ", why);
}

bool OfferedMessages::receive(Message& m, Stream stream) {
  if (!m.offer) m.offer = offers_->take(m.peer, rank_);
  Offer& offer = *m.offer;
  {
    std::lock_guard lock(offer.mutex);
    if (offer.withdrawn) return false;  // by a fault, of which this rank is about to hear
    if (offer.device != m.device) reach(m, offer);
    m.device->wait(stream, offer.ready->get());
    if (m.bytes()) m.device->copy(m.data, offer.data, m.bytes(), stream);
    offer.read = make_event(m.device);
    m.device->record(offer.read.get(), stream);
    offer.taken = true;
  }
  transport_->wake(m.peer);
  return true;
}

void OfferedMessages::withdraw(Message& m) {
  if (!m.offer || !m.sending) return;
  std::lock_guard lock(m.offer->mutex);
  m.offer->withdrawn = true;
}

void OfferedMessages::wait_for_end(std::chrono::milliseconds patience) try {
  if (std::exchange(left_, true)) return;
  std::vector<OwnEvent> ends;
  for (const auto& [queue, stream] : streams_) {
    ends.push_back(make_event(stream.device()));
    stream.device()->record(ends.back().get(), stream.get());
  }
  soon(patience, [&] {
    return std::all_of(ends.begin(), ends.end(),
                       [](const OwnEvent& end) { return end.device()->done(end.get()); });
  });
} catch (const Error&) {  // the device has failed
}

}  // namespace gpucomm
