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

// A piece that is here goes on to the next rank and is decoded where it lies, all by the decoding lane's
// stream; false: not now.
bool DeviceExecution::pass(int step, DeviceCall call) {
  const Instruction& in = at(step);
  if (in.used_by < 0 || !share_->arena || lanes_[in.lane].moved) return false;
  SharedArena& arena = *share_->arena;
  const size_t bytes = call.message_bytes(in);
  if (bytes > arena.chunk_bytes() || !arena.has_chunk(in.peers[0])) return false;
  const Instruction& user = at(in.used_by);
  advance(user.lane);
  if (head(user.lane) != in.used_by || !ready(user, step)) return false;
  if (in.sent_by >= 0 && !can_leave(in.sent_by, step)) return false;
  call.stream = share_->held.streams[user.lane].get();
  wait_for_lanes(user, user.lane);
  call.arrived = arena.chunk(in.peers[0], call.stream);
  if (in.sent_by >= 0) {
    wait_for_lanes(at(in.sent_by), user.lane);
    arena.fill(at(in.sent_by).peers[0], call.arrived, bytes, call.stream);
    finish(in.sent_by);
  }
  run_local(in.used_by, call);
  arena.give_back(in.peers[0], call.stream);
  finish(in.used_by);
  return true;
}

}  // namespace gpucomm
