#include "engine/arena_messages.h"

#include <algorithm>

namespace gpucomm {

ArenaMessages::~ArenaMessages() {
  if (!streams_) tell_nothing_open(*transport_, rank_);
}

Stream ArenaMessages::stream_for(const Message& m) {
  return streams_.of(m, [&](DeviceShare& share) {
    share.arena = std::make_unique<SharedArena>(m.device, transport_, rank_, world_);
  });
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

std::optional<Error> ArenaMessages::settle() {
  if (streams_) streams_->wait_for_readers(watch_.another());  // others may check() meanwhile
  settled_ = true;
  return {};
}

void ArenaMessages::check(bool done, std::optional<Seconds> waited) {
  if (done) return;
  watch_.check_everybody();
  if (waited) watch_.time_out(streams_->held.device->name(), *waited);
}

}  // namespace gpucomm
