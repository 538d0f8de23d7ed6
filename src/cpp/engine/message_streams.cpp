#include "engine/message_streams.h"

#include "base/soon.h"

namespace gpucomm {

MessageStreams::~MessageStreams() {
  if (share_) outlive(std::move(share_));
}

void MessageStreams::wait_for_end() {
  if (share_ && !std::exchange(waited_, true)) share_->ends(kAtAnEnd);
}

Stream MessageStreams::stream(const Message& m) {
  Held& held = share_->held;
  if (held.device != m.device)
    fail(ErrorKind::unavailable, "rank ", rank_, " of ", world_, m.sending ? " sends from " : " receives on ",
         m.device->name(), ", its earlier messages were on ", held.device->name(), ": ", where_,
         " all messages of a communicator are on one device");
  const size_t index = streams_.try_emplace({m.peer, m.sending}, streams_.size()).first->second;
  held.grow_streams(index + 1);
  return held.streams[index].get();
}

}  // namespace gpucomm
