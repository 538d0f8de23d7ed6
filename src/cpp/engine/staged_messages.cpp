#include "engine/staged_messages.h"

namespace gpucomm {
namespace {

constexpr uint64_t kPart = ~uint64_t{0};  // the tag of what follows a header, which has none like it

}  // namespace

Stream StagedMessages::stream_for(const Message& m) {
  return streams_.of(m, [&](DeviceShare& share) {
    share.links = std::make_unique<StagedLinks>(m.device, transport_, rank_, world_);
  });
}

bool StagedMessages::send(Message& m, Stream stream) {
  StagedLinks& links = *streams_->links;
  do {
    while (m.enqueued < m.bytes() && links.has_room(m.peer)) {
      const StagedLinks::Parcel parcel = links.parcel(m.bytes(), m.enqueued, false);
      links.fill(m.peer, kPart, parcel, m.data, stream);
      m.enqueued += parcel.bytes;
    }
  } while (links.push());
  return m.enqueued == m.bytes() && links.sent_to(m.peer) && transport_->flush(m.peer);
}

bool StagedMessages::receive(Message& m, Stream stream) {
  StagedLinks& links = *streams_->links;
  while (m.enqueued < m.bytes()) {
    const StagedLinks::Parcel parcel = links.parcel(m.bytes(), m.enqueued, false);
    if (!links.pull(m.peer, parcel, [&] { return next(m); })) return false;
    m.device->copy(m.data + m.enqueued, links.data(m.peer), parcel.bytes, stream);
    links.give_back(m.peer, stream);
    m.enqueued += parcel.bytes;
  }
  return true;
}

const Chunk* StagedMessages::next(const Message& m) {
  const Chunk* chunk = transport_->peek(m.peer);
  if (chunk && chunk->tag != kPart)
    fail(ErrorKind::mismatch, "rank ", m.peer, " does not send recv #", m.number, " of rank ", rank_, " of ",
         world_, " through host memory: give all ranks the same GPUCOMM_DEVICE_TRANSPORT");
  return chunk;
}

}  // namespace gpucomm
