#include "engine/staged_messages.h"

namespace gpucomm {
namespace {

constexpr uint64_t kPart = ~uint64_t{0};  // the tag of what follows a header, which has none like it

}  // namespace

StagedMessages::~StagedMessages() {
  if (share_) outlive(std::move(share_));
}

Stream StagedMessages::stream_for(const Message& m) {
  if (!share_) {
    auto share = std::make_unique<DeviceShare>(m.device);
    share->links = std::make_unique<StagedLinks>(m.device, transport_, rank_, world_);
    share_ = std::move(share);
  }
  Held& held = share_->held;
  if (held.device != m.device)
    fail(ErrorKind::unavailable, "rank ", rank_, " of ", world_, m.sending ? " sends from " : " receives on ",
         m.device->name(), ", its earlier messages were on ", held.device->name(),
         ": between processes all messages of a communicator are on one device");
  const size_t index = streams_.try_emplace({m.peer, m.sending}, streams_.size()).first->second;
  held.grow_streams(index + 1);
  return held.streams[index].get();
}

bool StagedMessages::send(Message& m, Stream stream) {
  StagedLinks& links = *share_->links;
  do {
    for (; m.enqueued < m.bytes() && links.has_room(m.peer);) {
      const StagedLinks::Parcel parcel = links.parcel(m.bytes(), m.enqueued, false);
      links.fill(m.peer, kPart, parcel, m.data, stream);
      m.enqueued += parcel.bytes;
    }
  } while (links.push());
  return m.enqueued == m.bytes() && links.sent_to(m.peer) && transport_->flush(m.peer);
}

bool StagedMessages::receive(Message& m, Stream stream) {
  StagedLinks& links = *share_->links;
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

void StagedMessages::leave() {
  if (share_ && !std::exchange(left_, true)) share_->wait_for_end();
}

}  // namespace gpucomm
