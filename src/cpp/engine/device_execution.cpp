#include "engine/device_execution.h"

#include <algorithm>
#include <utility>

#include "base/soon.h"
#include "engine/staging.h"

namespace gpucomm {

DeviceExecution::DeviceExecution(std::shared_ptr<Transport> transport, int rank, int world)
    : transport_(std::move(transport)),
      rank_(rank),
      world_(world),
      words_(transport_->device_words()),
      watch_(*transport_, rank, world, kPeersEnqueued) {}

DeviceExecution::~DeviceExecution() {
  if (share_)
    outlive(std::move(share_));
  else
    tell_nothing_open(*transport_, rank_);
}

// What is enqueued uses arrays that nobody may keep after this.
void DeviceExecution::leave() {
  if (share_ && !std::exchange(left_, true)) share_->ends(kAtAnEnd);
}

std::optional<Error> DeviceExecution::settle() {
  if (share_) share_->wait_for_readers(watch_.another());  // others may check() meanwhile
  settled_ = true;
  return {};
}

void DeviceExecution::check(bool done, std::optional<Seconds> waited) {
  if (done) return;
  watch_.check_everybody();
  if (waited) watch_.time_out(share_->held.device->name(), *waited);
}

void DeviceExecution::begin(const StreamCall& call) {
  call_ = call, phase_ = Phase::coming, ++turn_;
  announce();
}

bool DeviceExecution::advance() {
  if (phase_ == Phase::coming) {
    if (!all_agree()) return false;
    prepare();
    phase_ = Phase::meeting;
  }
  if (phase_ == Phase::meeting) {
    if (!connected()) return false;
    start_lanes();
    phase_ = Phase::running;
  }
  bool moved = move_host();
  if (phase_ == Phase::running) {
    for (int lane = 0; lane < program().lanes; ++lane) moved |= advance(lane);
    if (remaining_) return moved;
    end();
    phase_ = Phase::passing, moved = true;
  }
  if (host_done()) phase_ = Phase::done, moved = true;
  return moved;
}

void DeviceExecution::open(DeviceShare& share) {
  if (world_ > 1) share.arena = std::make_unique<SharedArena>(share.held.device, transport_, rank_, world_);
}

bool DeviceExecution::connected() { return !share_->arena || share_->arena->meet(); }

// Of this rank's device what the call needs.
void DeviceExecution::prepare() {
  const std::shared_ptr<Device>& device = call_.arrays.device;
  if (!share_) {
    auto share = std::make_unique<DeviceShare>(device);
    open(*share);
    share_ = std::move(share);
  }
  if (share_->held.device != device)
    fail(ErrorKind::unavailable, "rank ", rank_, " of ", world_, " calls ", describe(call_.record), " on ",
         device->name(), ", its earlier calls were on ", share_->held.device->name(),
         ": between processes all calls of a communicator are on one device");
  share_->held.grow_streams(program().lanes);
  if (program().shape.codec) share_->held.expect_faults();
  std::byte* const scratch = share_->held.grow_scratch(scratch_of(program(), call_.arrays));
  spaces_ = staged_spaces(program(), call_.arrays, scratch);
}

// All lanes come after what the caller's stream holds, and after this rank's former call.
void DeviceExecution::start_lanes() {
  Device& device = *share_->held.device;
  device.wait(share_->hub.get(), came_of(call_.arrays, share_->came));
  if (staged(call_.arrays)) stage_in(program(), call_.arrays, share_->held.at_hand, share_->hub.get());
  device.record(share_->hub_event->get(), share_->hub.get());
  for (int l = 0; l < program().lanes; ++l)
    device.wait(share_->held.streams[l].get(), share_->hub_event->get());
  const size_t steps = program().instructions.size();
  lanes_.assign(program().lanes, {});
  done_.assign(steps, 0), awaited_.assign(steps, 0);
  for (const Instruction& in : program().instructions)
    for (const int before : in.after) awaited_[before] |= program().instructions[before].lane != in.lane;
  remaining_ = steps;
}

void DeviceExecution::end() {
  Device& device = *share_->held.device;
  for (int l = 0; l < program().lanes; ++l) {
    device.record(share_->held.events[l].get(), share_->held.streams[l].get());
    device.wait(share_->hub.get(), share_->held.events[l].get());
  }
  if (staged(call_.arrays)) stage_out(program(), call_.arrays, share_->held.at_hand, share_->hub.get());
  share_->finish(call_.arrays);
  call_.arrays = {};
}

bool DeviceExecution::advance(int index) {
  const std::vector<int>& steps = program().lane_steps[index];
  const Held& held = share_->held;
  Lane& lane = lanes_[index];
  bool progressed = false;
  while (lane.next < steps.size()) {
    const int step = steps[lane.next];
    if (!done_[step]) {
      if (!lane.begun) {
        if (!ready(at(step))) break;
        wait_for_lanes(at(step), index);
        lane.begun = true;
      }
      const size_t moved = lane.moved;
      const bool finished = run(step, lane, held.streams[index].get());
      progressed |= finished || lane.moved > moved;
      if (!finished) break;
      finish(step);
    }
    lane = {.next = lane.next + 1};
  }
  return progressed;
}

void DeviceExecution::finish(int step) {
  const Held& held = share_->held;
  const int lane = at(step).lane;
  if (awaited_[step]) held.device->record(held.events[lane].get(), held.streams[lane].get());
  done_[step] = 1, --remaining_;
}

// The next step of a lane, -1 behind its last; some are done before their turn (run_local, pass).
int DeviceExecution::head(int lane) const {
  const std::vector<int>& steps = program().lane_steps[lane];
  const auto next =
      std::find_if(steps.begin() + lanes_[lane].next, steps.end(), [&](int step) { return !done_[step]; });
  return next == steps.end() ? -1 : *next;
}

bool DeviceExecution::ready(const Instruction& in, int except) const {
  return std::all_of(in.after.begin(), in.after.end(),
                     [&](int before) { return done_[before] || before == except; });
}

// What a lane has recorded last covers all its steps before, but those that passed with another lane's: they
// use no slot of scratch, and what uses their piece is enqueued with them.
void DeviceExecution::wait_for_lanes(const Instruction& in, int index) {
  const Held& held = share_->held;
  for (const int before : in.after) {
    const int other = at(before).lane;
    if (other != index) held.device->wait(held.streams[index].get(), held.events[other].get());
  }
}

// One attempt to enqueue the rest of a step; true: all of it is.
bool DeviceExecution::run(int step, Lane& lane, Stream stream) {
  const Instruction& in = at(step);
  const Held& held = share_->held;
  const Lost lost = lost_of(program(), call_.arrays, held.at_hand);
  const DeviceCall call{program(),          spaces_, *held.device,     stream,
                        call_.arrays.error, lost,    held.faults.get()};
  if (in.kind == StepKind::send) return send(in, lane, call);
  if (receives(in.kind)) return receive(in, lane, call);
  run_local(step, call);
  return true;
}

bool DeviceExecution::send(const Instruction& in, Lane& lane, const DeviceCall& call) {
  if (in.peers.empty()) return true;
  SharedArena& arena = *share_->arena;
  const size_t total = call.message_bytes(in);
  while (lane.moved < total) {
    if (!arena.has_room(in.peers[0])) return false;
    const size_t bytes = std::min(arena.chunk_bytes(), total - lane.moved);
    arena.fill(in.peers[0], call.source(in) + lane.moved, bytes, call.stream);
    lane.moved += bytes;
  }
  return true;
}

bool DeviceExecution::receive(const Instruction& in, Lane& lane, const DeviceCall& call) {
  if (in.peers.empty()) return true;
  SharedArena& arena = *share_->arena;
  const size_t total = call.message_bytes(in);
  while (lane.moved < total) {
    for (const int peer : in.peers)
      if (!arena.has_chunk(peer)) return false;
    if (!lane.moved && total <= arena.chunk_bytes() && pass(in, call)) return true;
    const size_t bytes = std::min(arena.chunk_bytes(), total - lane.moved);
    take(in, lane.moved, bytes, call);
    lane.moved += bytes;
  }
  return true;
}

// A chunk of each peer, straight out of their arenas.
void DeviceExecution::take(const Instruction& in, size_t moved, size_t bytes, const DeviceCall& call) {
  SharedArena& arena = *share_->arena;
  std::vector<const std::byte*> arrived;
  for (const int peer : in.peers) arrived.push_back(arena.chunk(peer, call.stream));
  if (in.kind == StepKind::recv)
    call.device.copy(call.target(in) + moved, arrived[0], bytes, call.stream);
  else
    enqueue_fold(call, in, std::move(arrived), {moved, bytes});
  for (const int peer : in.peers) arena.give_back(peer, call.stream);
}

}  // namespace gpucomm
