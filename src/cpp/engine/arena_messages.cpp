#include "engine/arena_messages.h"

#include <algorithm>
#include <utility>

namespace gpucomm {

ArenaMessages::~ArenaMessages() {
  if (share_)
    outlive(std::move(share_));
  else
    transport_->device_words()->closed[rank_].store(1, std::memory_order_release);
}

Stream ArenaMessages::stream_for(const Message& m) {
  if (!share_) {
    auto share = std::make_unique<DeviceShare>(m.device);
    share->arena = std::make_unique<SharedArena>(m.device, transport_, rank_, world_);
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

size_t ArenaMessages::chunk_of(const Message& m) {
  return std::min(arena().chunk_bytes(), m.bytes() - m.enqueued);
}

bool ArenaMessages::send(Message& m, Stream stream) {
  if (!arena().meet(m.peer)) return false;
  while (m.enqueued < m.bytes()) {
    if (!arena().has_room(m.peer)) return false;
    const size_t bytes = chunk_of(m);
    arena().fill(m.peer, m.data + m.enqueued, bytes, stream);
    m.enqueued += bytes;
  }
  return true;
}

bool ArenaMessages::receive(Message& m, Stream stream) {
  if (!arena().meet(m.peer)) return false;
  while (m.enqueued < m.bytes()) {
    if (!arena().has_chunk(m.peer)) return false;
    const size_t bytes = chunk_of(m);
    m.device->copy(m.data + m.enqueued, arena().chunk(m.peer, stream), bytes, stream);
    arena().give_back(m.peer, stream);
    m.enqueued += bytes;
  }
  return true;
}

void ArenaMessages::leave() {
  if (share_ && !std::exchange(left_, true)) share_->wait_for_end();
}

void ArenaMessages::settle() {
  if (share_) share_->wait_for_readers();
}

}  // namespace gpucomm
