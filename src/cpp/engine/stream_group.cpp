#include "engine/stream_group.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "base/soon.h"
#include "engine/device_share.h"
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

// What the streams hold may still use any rank's memory: ending a stream waits for nothing.
StreamGroup::~StreamGroup() {
  leave();
  if (hub_ && !ended()) leave_behind();
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

// Once the first has left nothing changes any more: the ranks wait beside each other.
void StreamGroup::leave() {
  {
    std::lock_guard lock(mutex_);
    left_ = true;
    if (hub_ && !marked_) marked_ = mark_end();
    if (!marked_) return;
  }
  soon(kAtAnEnd, [this] { return ended(); });
}

// Where a call was enqueued in part, its streams do not come together by themselves. False: what is enqueued
// is in a capture, and runs when its graph is launched; or the device has failed.
bool StreamGroup::mark_end() try {
  Device& device = *hub_.device();
  if (device.capture_of(hub_.get())) return false;
  for (auto* all : {&ranks_, &left_behind_})
    for (Held& held : *all)
      for (size_t i = 0; i < held.streams.size(); ++i) {
        held.device->record(held.events[i].get(), held.streams[i].get());
        device.wait(hub_.get(), held.events[i].get());
      }
  device.record(hub_event_.get(), hub_.get());
  return true;
} catch (const Error&) {
  return false;
}

bool StreamGroup::ended() const try {
  return marked_ && hub_.device()->done(hub_event_.get());
} catch (const Error&) {  // the device has failed
  return false;
}

// Each device's part waits for the streams of all: these use any rank's scratch.
void StreamGroup::leave_behind() try {
  std::vector<Held>& all = left_behind_;
  all.insert(all.end(), std::move_iterator(ranks_.begin()), std::move_iterator(ranks_.end()));
  Held& own = all.emplace_back();
  own.device = hub_.device();
  own.streams.push_back(std::move(hub_)), own.events.push_back(make_event(own.device));
  for (Held& held : all) {
    if (!held.device) continue;
    auto share = std::make_unique<DeviceShare>(held.device);
    held.device->wait(share->hub.get(), hub_event_.get());
    share->held = std::move(held);
    outlive(std::move(share));
  }
} catch (const Error&) {  // the device has failed: what it has is gone
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
        if (const uint64_t salt = salt_of(*parts_[peer]->program, part->program->rank); salt != in.salt)
          fail(ErrorKind::mismatch, unfitting_counts(*part->program, peer, part->record, salt - 1));
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
      if (rank == 0) move_hub(held.device);
    }
    std::byte* const scratch = held.grow_scratch(scratch_of(*part.program, part.arrays));
    spaces_[rank] = staged_spaces(*part.program, part.arrays, scratch);
  }
  for (size_t rank = 0; rank < parts_.size(); ++rank) lend(rank, moved);
}

// What comes on the new one comes after all that the former one held.
void StreamGroup::move_hub(const std::shared_ptr<Device>& device) {
  OwnStream hub = make_stream(device);
  if (hub_) device->wait(hub.get(), hub_event_.get());
  hub_ = std::move(hub), hub_event_ = make_event(device);
}

// A rank's memory to other devices' work.
void StreamGroup::lend(size_t rank, bool moved) const {
  bool lent = false;
  for (const Held& other : ranks_) {
    if (other.device == ranks_[rank].device) continue;
    lent = true;
    if (moved) other.device->reach(device(rank));
  }
  if (!lent) return;
  const StreamCall& part = *parts_[rank];
  const Arrays used = staged_arrays(*part.program, part.arrays, ranks_[rank].scratch.get());
  for (const std::byte* array : {used.input, static_cast<const std::byte*>(used.output)})
    if (const std::string why = array ? device(rank).withholds(array) : ""; !why.empty())
      fail(ErrorKind::unavailable, "rank ", rank, " of ", parts_.size(), " calls ", describe(part.record),
           " beside ranks on other devices, but ", why);
}

const Launches& StreamGroup::launches_of() {
  constexpr size_t kMost = 256;
  Key key(on_one_device(), {});
  auto& [one_device, programs] = key;
  for (const auto& part : parts_) programs.push_back(part->program);
  if (const auto found = launches_.find(key); found != launches_.end()) return found->second;
  std::vector<const Program*> values;
  for (const auto& program : programs) values.push_back(program.get());
  if (launches_.size() >= kMost) launches_.clear();
  Launches launches = arrange(values, one_device);
  return launches_.emplace(std::move(key), std::move(launches)).first->second;
}

bool StreamGroup::on_one_device() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const Held& held) { return held.device == ranks_[0].device; });
}

// All of the group comes after what all ranks' streams hold, and after its former call.
void StreamGroup::begin(const Launches& launches) {
  give_streams(launches.tracks);
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    if (streams_alike(rank)) continue;
    device(rank).record(came_[rank].get(), parts_[rank]->arrays.stream);
    device(0).wait(hub_.get(), came_[rank].get());
  }
  stage(stage_in);
  if (events_.empty()) return;
  device(0).record(hub_event_.get(), hub_.get());
  for (size_t t = 0; t < streams_.size(); ++t) device(launches.tracks[t]).wait(streams_[t], hub_event_.get());
}

// To each track; a single one needs none beside the hub's.
void StreamGroup::give_streams(const std::vector<int>& tracks) {
  streams_.clear(), events_.clear();
  if (tracks.size() == 1 && ranks_[tracks[0]].device == hub_.device()) return streams_.push_back(hub_.get());
  std::vector<size_t> used(parts_.size());
  for (const int rank : tracks) {
    Held& held = ranks_[rank];
    const size_t index = used[rank]++;
    held.grow_streams(index + 1);
    streams_.push_back(held.streams[index].get()), events_.push_back(held.events[index].get());
  }
}

void StreamGroup::enqueue(const Launch& launch) {
  Device& own = device(launch.steps[0].rank);
  const Stream stream = streams_[launch.track];
  for (const int track : launch.after) own.wait(stream, events_[track]);
  Batch batch;
  for (const Launch::Step& step : launch.steps) add(batch, step, stream);
  batch.enqueue(own, stream);
  if (launch.record) own.record(events_[launch.track], stream);
}

// Straight out of the senders' memory; a coded piece where it was encoded.
void StreamGroup::add(Batch& batch, const Launch::Step& step, Stream stream) const {
  const Instruction& in = at(step.rank, step.index);
  DeviceCall call = call_of(step.rank, stream);
  if (!receives(in.kind)) {
    for (const Launch::Source& sent : step.sources) call.arrived = lies(sent);
    return add_local(batch, call, in);
  }
  const size_t bytes = call.message_bytes(in);
  if (!bytes) return;
  if (in.kind == StepKind::recv)
    batch.copies.push_back({call.target(in), lies(step.sources[0]), bytes});
  else
    batch.folds.push_back(fold_of(step, call));
}

// Where what a rank sends lies.
const std::byte* StreamGroup::lies(const Launch::Source& sent) const {
  return call_of(sent.rank, nullptr).source(at(sent.rank, sent.step));
}

void StreamGroup::end(const Launches& launches) {
  for (size_t t = 0; t < events_.size(); ++t) {
    device(launches.tracks[t]).record(events_[t], streams_[t]);
    device(0).wait(hub_.get(), events_[t]);
  }
  stage(stage_out);
  device(0).record(hub_event_.get(), hub_.get());
  mark_finished();
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const Arrays& arrays = parts_[rank]->arrays;
    const bool waits = arrays.stream_waits && !streams_alike(rank, true);
    if (waits) device(rank).wait(arrays.stream, finished_[rank]->get());
  }
}

// By one event for each device.
void StreamGroup::mark_finished() {
  for (auto& event : finished_) event.reset();
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const auto same = std::find_if(ranks_.begin(), ranks_.end(),
                                   [&](const Held& held) { return held.device == ranks_[rank].device; });
    const auto first = static_cast<size_t>(same - ranks_.begin());
    if (first < rank) {
      finished_[rank] = finished_[first];
      continue;
    }
    finished_[rank] = finished_of_.take(ranks_[rank].device);
    device(rank).record(finished_[rank]->get(), ended(rank));
  }
}

// Whether an earlier rank has its arrays on this rank's stream (and lets it wait): once is enough.
bool StreamGroup::streams_alike(size_t rank, bool waiting) const {
  const Arrays& own = parts_[rank]->arrays;
  return std::any_of(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(rank), [&](const auto& part) {
    const Arrays& other = part->arrays;
    return other.stream == own.stream && other.device == own.device && (!waiting || other.stream_waits);
  });
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

Fold StreamGroup::fold_of(const Launch::Step& step, const DeviceCall& call) const {
  std::vector<const std::byte*> arrived;
  std::vector<std::byte*> answered;
  for (const Launch::Source& from : step.sources) {
    arrived.push_back(lies(from));
    const int answer = at(from.rank, from.step).answered_by;
    if (from.answered) answered.push_back(call_of(from.rank, nullptr).target(at(from.rank, answer)));
  }
  const Instruction& in = at(step.rank, step.index);
  Fold fold = gpucomm::fold_of(call, in, std::move(arrived), {0, in.bytes});
  fold.destinations.insert(fold.destinations.end(), answered.begin(), answered.end());
  return fold;
}

}  // namespace gpucomm
