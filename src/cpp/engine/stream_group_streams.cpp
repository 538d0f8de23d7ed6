// The part of StreamGroup that orders streams: the ranks' own, the group's, and those that work runs on.
#include <algorithm>
#include <utility>

#include "engine/device_share.h"
#include "engine/staging.h"
#include "engine/stream_group.h"

namespace gpucomm {

// Of every rank's device what this call needs.
void StreamGroup::prepare() {
  spaces_.resize(parts_.size()), came_.resize(parts_.size());
  bool moved = false;
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    Held& held = ranks_[rank];
    const StreamCall& part = *parts_[rank];
    if (held.device != part.arrays.device) {
      moved = true;
      if (held.device) left_behind_.push_back(std::move(held));
      held = held_on(part.arrays.device);
      came_[rank] = make_event(held.device);
      if (rank == 0) hub_ = make_stream(held.device), hub_event_ = make_event(held.device);
    }
    std::byte* const scratch = held.grow_scratch(scratch_of(*part.program, part.arrays), part.arrays.capture);
    spaces_[rank] = staged_spaces(*part.program, part.arrays, scratch);
  }
  for (size_t rank = 0; rank < parts_.size(); ++rank) lend(rank, moved);
  if (parts_[0]->program->shape.codec) ranks_[0].expect_faults();
}

// What a rank has left behind there, for all calls of the group follow one another; else nothing yet.
Held StreamGroup::held_on(const std::shared_ptr<Device>& device) {
  const auto found = std::find_if(left_behind_.begin(), left_behind_.end(),
                                  [&](const Held& held) { return held.device == device; });
  Held held;
  if (found != left_behind_.end()) {
    held = std::move(*found);
    left_behind_.erase(found);
  }
  held.device = device;
  return held;
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
  const Arrays used = staged_arrays(*part.program, part.arrays, ranks_[rank].at_hand);
  for (const std::byte* array : {used.input, static_cast<const std::byte*>(used.output)})
    if (const std::string why = array ? device(rank).withholds(array) : ""; !why.empty())
      fail(ErrorKind::unavailable, "rank ", rank, " of ", parts_.size(), " calls ", describe(part.record),
           " beside ranks on other devices, but ", why);
}

// All of the group comes after what all ranks' streams hold, and after its former call.
void StreamGroup::begin(const Launches& launches) {
  base_ = on_one_stream() ? parts_[0]->arrays.stream : hub_.get();
  give_streams(launches.tracks);
  if (former_ && !parts_[0]->arrays.capture) device(0).wait(base_, former_->get());
  if (base_ == hub_.get()) wait_for_ranks();
  stage(stage_in);
  if (events_.empty()) return;
  device(0).record(hub_event_.get(), base_);
  for (size_t t = 0; t < streams_.size(); ++t) device(launches.tracks[t]).wait(streams_[t], hub_event_.get());
}

// Of all ranks, which then has the call itself: no other one waits, or is waited for. Not in a capture, whose
// end the hub tells.
bool StreamGroup::on_one_stream() const {
  const Arrays& first = parts_[0]->arrays;
  return !first.capture && std::all_of(parts_.begin(), parts_.end(), [&](const auto& part) {
    const Arrays& arrays = part->arrays;
    return arrays.stream == first.stream && arrays.device == first.device && arrays.stream_waits;
  });
}

void StreamGroup::wait_for_ranks() {
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const Arrays& arrays = parts_[rank]->arrays;
    if (arrays.came || !streams_alike(rank)) device(0).wait(hub_.get(), came_of(arrays, came_[rank]));
  }
}

// To each track; a single one needs none beside that of the call.
void StreamGroup::give_streams(const std::vector<int>& tracks) {
  streams_.clear(), events_.clear();
  if (tracks.size() == 1 && ranks_[tracks[0]].device == hub_.device()) return streams_.push_back(base_);
  std::vector<size_t> used(parts_.size());
  for (const int rank : tracks) {
    Held& held = ranks_[rank];
    const size_t index = used[rank]++;
    held.grow_streams(index + 1);
    streams_.push_back(held.streams[index].get()), events_.push_back(held.events[index].get());
  }
}

void StreamGroup::end(const Launches& launches) {
  for (size_t t = 0; t < events_.size(); ++t) {
    device(launches.tracks[t]).record(events_[t], streams_[t]);
    device(0).wait(base_, events_[t]);
  }
  stage(stage_out);
  mark_finished();
  if (!parts_[0]->arrays.capture) former_ = finished_[0];
  if (base_ == hub_.get()) have_ranks_wait();
}

void StreamGroup::have_ranks_wait() {
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

// Whether an earlier rank has its arrays on this rank's stream (and the group comes after all that this
// holds, or it waits): once is enough.
bool StreamGroup::streams_alike(size_t rank, bool waiting) const {
  const Arrays& own = parts_[rank]->arrays;
  return std::any_of(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(rank), [&](const auto& part) {
    const Arrays& other = part->arrays;
    const bool does = waiting ? other.stream_waits : !other.came;
    return other.stream == own.stream && other.device == own.device && does;
  });
}

// A stream behind the call that can record an event of the rank's device.
Stream StreamGroup::ended(size_t rank) {
  Held& held = ranks_[rank];
  if (held.device == ranks_[0].device) return base_;
  held.grow_streams(1);
  held.device->wait(held.streams[0].get(), finished_[0]->get());
  return held.streams[0].get();
}

// Each rank's on its own device, behind what the group has done so far and before what comes.
template <class Stage>
void StreamGroup::stage(Stage stage) {
  bool recorded = false;
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const StreamCall& part = *parts_[rank];
    if (!staged(part.arrays)) continue;
    if (!std::exchange(recorded, true)) device(0).record(hub_event_.get(), base_);
    Held& held = ranks_[rank];
    held.grow_streams(1);
    device(rank).wait(held.streams[0].get(), hub_event_.get());
    stage(*part.program, part.arrays, held.at_hand, held.streams[0].get());
    device(rank).record(held.events[0].get(), held.streams[0].get());
    device(0).wait(base_, held.events[0].get());
  }
}

}  // namespace gpucomm
