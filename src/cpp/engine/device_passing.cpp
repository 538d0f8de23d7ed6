// Coded pieces that pass a rank of a DeviceExecution without a slot of scratch, where it happens to be so
// far: what a step needs beside the piece is enqueued, and the arena has room. Else they take the slot.
#include <utility>

#include "engine/device_execution.h"

namespace gpucomm {

// Whether a send that only waits for this step, which brings its piece, can be enqueued with it.
bool DeviceExecution::can_leave(int send, int bringing) const {
  const Instruction& in = at(send);
  return head(in.lane) == send && ready(in, bringing) &&
         message_bytes(program(), in) <= share_->arena->chunk_bytes() && share_->arena->has_room(in.peers[0]);
}

// A step that moves nothing; what it encodes goes straight into the message that takes it away.
void DeviceExecution::run_local(int step, DeviceCall call) {
  const Instruction& in = at(step);
  const int encode = in.kind == StepKind::encode && !in.spared ? step : in.encodes;
  const int send = share_->arena && encode >= 0 ? at(encode).sent_by : -1;
  const int used_by = send < 0 ? -1 : at(encode).used_by;
  if (send < 0 || !can_leave(send, encode) || (used_by >= 0 && !ready(at(used_by), encode)))
    return enqueue_local(call, in);
  SharedArena& arena = *share_->arena;
  const int peer = at(send).peers[0];
  wait_for_lanes(at(send), in.lane);
  call.leaves = arena.room(peer, call.stream);
  enqueue_local(call, in);
  arena.tell_filled(peer, call.stream);
  finish(send);
  if (used_by < 0) return;
  wait_for_lanes(at(used_by), in.lane);
  call.arrived = std::exchange(call.leaves, nullptr);
  enqueue_local(call, at(used_by));
  arena.keep(peer, call.stream);
  finish(used_by);
}

// From slot to slot, which the sending lane's event then covers.
void DeviceExecution::forward(const Instruction& arrived, size_t bytes) {
  const Instruction& in = at(arrived.sent_by);
  const Held& held = share_->held;
  const Stream stream = held.streams[in.lane].get();
  wait_for_lanes(in, in.lane);
  share_->arena->fill(in.peers[0], share_->arena->chunk(arrived.peers[0], stream), bytes, stream);
  held.device->record(held.events[in.lane].get(), stream);
  finish(arrived.sent_by);
}

// A piece that is here, in one chunk, is sent on, if it is to be, and decoded where it lies; false: not now.
bool DeviceExecution::pass(const Instruction& in, DeviceCall call) {
  if (in.used_by < 0) return false;
  const int step = static_cast<int>(&in - program().instructions.data());
  const Instruction& user = at(in.used_by);
  SharedArena& arena = *share_->arena;
  advance(user.lane);
  if (head(user.lane) != in.used_by || !ready(user, step)) return false;
  if (in.sent_by >= 0 && !can_leave(in.sent_by, step)) return false;
  const Held& held = share_->held;
  if (in.sent_by >= 0) forward(in, call.message_bytes(in));
  call.stream = held.streams[user.lane].get();
  wait_for_lanes(user, user.lane);
  call.arrived = arena.chunk(in.peers[0], call.stream);
  run_local(in.used_by, call);
  if (in.sent_by >= 0) held.device->wait(call.stream, held.events[at(in.sent_by).lane].get());
  arena.give_back(in.peers[0], call.stream);
  finish(in.used_by);
  return true;
}

}  // namespace gpucomm
