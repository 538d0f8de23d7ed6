#include "engine/stream_group.h"

#include <algorithm>

#include "engine/staging.h"

namespace gpucomm {
namespace {

// Of the messages from a rank to another; only their two ranks know it.
uint64_t salt_of(const Program& sender, int receiver) {
  for (const Instruction& in : sender.instructions)
    if (in.kind == StepKind::send && !in.peers.empty() && in.peers[0] == receiver) return in.salt;
  return 0;
}

}  // namespace

// What the streams hold may still use any rank's memory.
StreamGroup::~StreamGroup() {
  for (auto* all : {&ranks_, &left_behind_})
    for (Held& held : *all) held.streams.clear();
  hub_ = {};
}

void StreamGroup::come(int rank, const StreamCall& part) {
  std::lock_guard lock(mutex_);
  if (left_) fail(ErrorKind::peer_lost, "a rank has closed its communicator before ", describe(part.record));
  parts_[rank] = part;
  if (++present_ < static_cast<int>(parts_.size())) return;
  check();
  check_captures();
  prepare();
  const Launches& launches = launches_of();
  begin(launches);
  for (const Launch& launch : launches.list) enqueue(launch);
  end(launches);
  const uint64_t sequence = part.record.sequence;
  for (auto& each : parts_) each.reset();
  present_ = 0;
  enqueued_.store(sequence, std::memory_order_release);
}

void StreamGroup::leave() {
  std::lock_guard lock(mutex_);
  left_ = true;
}

void StreamGroup::check() const {
  for (size_t rank = 1; rank < parts_.size(); ++rank)
    if (parts_[rank]->record.tag != parts_[0]->record.tag)
      fail(ErrorKind::mismatch, "the ranks do not make the same call: rank 0 of ", parts_.size(), " calls ",
           describe(parts_[0]->record), ", rank ", rank, " ", describe(parts_[rank]->record));
  for (const auto& part : parts_)
    for (const Instruction& in : part->program->instructions) {
      if (in.kind != StepKind::recv || !in.salt) continue;
      for (const int peer : in.peers)
        if (salt_of(*parts_[peer]->program, part->program->rank) != in.salt)
          fail(ErrorKind::mismatch, unfitting_counts(*part->program, peer, part->record));
    }
}

// Where one stream is captured into a graph, the work of all ranks goes there: two graphs cannot be merged.
void StreamGroup::check_captures() const {
  for (size_t rank = 1; rank < parts_.size(); ++rank)
    if (parts_[rank]->arrays.capture != parts_[0]->arrays.capture)
      fail(ErrorKind::invalid_argument, "the streams of ranks 0 and ", rank, " of ", parts_.size(),
           " are not in one capture of a graph, in ", describe(parts_[rank]->record),
           ": the ranks' streams must be all in the same, or none in any");
}

// Of every rank's device what this call needs.
void StreamGroup::prepare() {
  spaces_.resize(parts_.size()), came_.resize(parts_.size());
  bool moved = false;
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    Held& held = ranks_[rank];
    const StreamCall& part = *parts_[rank];
    if (held.device != part.arrays.device) {
      moved = true;
      left_behind_.push_back(std::move(held));
      held = {}, held.device = part.arrays.device;
      came_[rank] = make_event(held.device);
      if (rank == 0) hub_ = make_stream(held.device), hub_event_ = make_event(held.device);
    }
    std::byte* const scratch = held.grow_scratch(scratch_of(*part.program, part.arrays));
    spaces_[rank] = staged_spaces(*part.program, part.arrays, scratch);
  }
  for (const Held& one : ranks_)
    for (const Held& other : ranks_)
      if (moved && one.device != other.device) one.device->reach(*other.device);
}

const Launches& StreamGroup::launches_of() {
  constexpr size_t kMost = 256;
  Key key;
  for (const auto& part : parts_) key.push_back(part->program);
  if (const auto found = launches_.find(key); found != launches_.end()) return found->second;
  std::vector<const Program*> programs;
  for (const auto& program : key) programs.push_back(program.get());
  if (launches_.size() >= kMost) launches_.clear();
  return launches_.emplace(std::move(key), arrange(programs)).first->second;
}

// All of the group comes after what all ranks' streams hold, and after its former call.
void StreamGroup::begin(const Launches& launches) {
  std::vector<size_t> used(parts_.size());
  streams_.clear(), events_.clear();
  for (const int rank : launches.tracks) {
    Held& held = ranks_[rank];
    const size_t index = used[rank]++;
    held.grow_streams(index + 1);
    streams_.push_back(held.streams[index].get()), events_.push_back(held.events[index].get());
  }
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    device(rank).record(came_[rank].get(), parts_[rank]->arrays.stream);
    device(0).wait(hub_.get(), came_[rank].get());
  }
  stage(stage_in);
  device(0).record(hub_event_.get(), hub_.get());
  for (size_t t = 0; t < streams_.size(); ++t) device(launches.tracks[t]).wait(streams_[t], hub_event_.get());
}

void StreamGroup::enqueue(const Launch& launch) {
  const Instruction& in = step(launch.rank, launch.step);
  const DeviceCall call = call_of(launch.rank, streams_[launch.track]);
  for (const int track : launch.after) call.device.wait(call.stream, events_[track]);
  if (receives(in.kind))
    receive(in, launch, call);
  else
    enqueue_local(call, in);
  if (launch.record) call.device.record(events_[launch.track], call.stream);
}

void StreamGroup::end(const Launches& launches) {
  for (size_t t = 0; t < streams_.size(); ++t) {
    device(launches.tracks[t]).record(events_[t], streams_[t]);
    device(0).wait(hub_.get(), events_[t]);
  }
  stage(stage_out);
  device(0).record(hub_event_.get(), hub_.get());
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const StreamCall& part = *parts_[rank];
    device(rank).record(part.finished->get(), ended(rank));
    if (part.arrays.stream_waits) device(rank).wait(part.arrays.stream, part.finished->get());
  }
}

// A stream behind the hub that can record an event of the rank's device.
Stream StreamGroup::ended(size_t rank) {
  Held& held = ranks_[rank];
  if (held.device == ranks_[0].device) return hub_.get();
  held.grow_streams(1);
  held.device->wait(held.streams[0].get(), hub_event_.get());
  return held.streams[0].get();
}

// Each rank's on its own device, behind what the group has done so far and before what comes.
template <class Stage>
void StreamGroup::stage(Stage stage) {
  bool recorded = false;
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const StreamCall& part = *parts_[rank];
    if (!staged(part.arrays)) continue;
    if (!std::exchange(recorded, true)) device(0).record(hub_event_.get(), hub_.get());
    Held& held = ranks_[rank];
    held.grow_streams(1);
    device(rank).wait(held.streams[0].get(), hub_event_.get());
    stage(*part.program, part.arrays, held.scratch.get(), held.streams[0].get());
    device(rank).record(held.events[0].get(), held.streams[0].get());
    device(0).wait(hub_.get(), held.events[0].get());
  }
}

DeviceCall StreamGroup::call_of(int rank, Stream stream) const {
  const Program& program = *parts_[rank]->program;
  const Arrays& arrays = parts_[rank]->arrays;
  const Lost lost = lost_of(program, arrays, ranks_[rank].scratch.get());
  return {program, spaces_[rank], device(rank), stream, arrays.error, lost};
}

// Straight out of the senders' memory.
void StreamGroup::receive(const Instruction& in, const Launch& launch, const DeviceCall& call) {
  std::vector<const std::byte*> arrived;
  std::vector<std::byte*> answered;
  for (const Launch::Source& from : launch.sources) {
    std::byte* const sent = call_of(from.rank, nullptr).source(step(from.rank, from.step));
    arrived.push_back(sent);
    if (from.answered) answered.push_back(sent);
  }
  const size_t bytes = call.message_bytes(in);
  if (!bytes) return;
  if (in.kind == StepKind::recv)
    call.device.copy(call.target(in), arrived[0], bytes, call.stream);
  else
    enqueue_fold(call, in, std::move(arrived), answered);
}

}  // namespace gpucomm
