#include "engine/stream_group.h"

#include <algorithm>
#include <utility>

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

std::optional<int> StreamGroup::come(int rank, const StreamCall& part) {
  std::lock_guard lock(mutex_);
  if (left_) return left_;
  parts_[rank] = part;
  if (++present_ < static_cast<int>(parts_.size())) return {};
  check();
  check_captures();
  prepare();
  enqueue_all(launches_of());
  const uint64_t sequence = part.record.sequence;
  capture_ = parts_[0]->arrays.capture;
  for (auto& each : parts_) each.reset();
  present_ = 0;
  enqueued_.store(sequence, std::memory_order_release);
  return {};
}

void StreamGroup::enqueue_all(const Launches& launches) try {
  begin(launches);
  for (const Launch& launch : launches.list) enqueue(launch);
  end(launches);
} catch (const Error&) {
  mark_part();
  throw;
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
// Nor can what follows a call that is in one, until that has ended.
void StreamGroup::check_captures() const {
  for (size_t rank = 1; rank < parts_.size(); ++rank)
    if (parts_[rank]->arrays.capture != parts_[0]->arrays.capture)
      fail(ErrorKind::invalid_argument, "the streams of ranks 0 and ", rank, " of ", parts_.size(),
           " are not in one capture of a graph, in ", describe(parts_[rank]->record),
           ": the ranks' streams must be all in the same, or none in any");
  const bool may_be_open = capture_ && capture_ != parts_[0]->arrays.capture;
  if (may_be_open && hub_.device()->capture_of(hub_.get()))
    fail(ErrorKind::invalid_argument, "an earlier call of this communicator is in a capture of a graph, ",
         describe(parts_[0]->record), " of ", parts_.size(),
         " ranks is not: end the capture first, or call on another communicator");
}

const Launches& StreamGroup::launches_of() {
  Key key(on_one_device(), {});
  auto& [one_device, programs] = key;
  for (const auto& part : parts_) programs.push_back(part->program);
  if (const Launches* known = launches_.find(key)) return *known;
  std::vector<const Program*> values;
  for (const auto& program : programs) values.push_back(program.get());
  const auto less = [](auto* a, auto* b) { return a->instructions.size() < b->instructions.size(); };
  const size_t most = (*std::max_element(values.begin(), values.end(), less))->instructions.size();
  return launches_.add(std::move(key), arrange(values, one_device), most);
}

bool StreamGroup::on_one_device() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const Held& held) { return held.device == ranks_[0].device; });
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

DeviceCall StreamGroup::call_of(int rank, Stream stream) const {
  const Program& program = *parts_[rank]->program;
  const Arrays& arrays = parts_[rank]->arrays;
  const Lost lost = lost_of(program, arrays, ranks_[rank].at_hand);
  CodingFaults* const faults = ranks_[0].faults.get();  // of all ranks, so that the cause is told
  return {program, spaces_[rank], device(rank), stream, arrays.error, lost, faults};
}

std::string StreamGroup::coding_fault() const {
  std::lock_guard lock(mutex_);
  const Held* const of_several = on_one_device() ? nullptr : &ranks_[0];
  for (const auto* all : {&left_behind_, &ranks_})
    for (const Held& held : *all) {
      const std::string fault = &held == of_several ? held.fault("a device of its ranks") : held.fault();
      if (!fault.empty()) return fault;
    }
  return "";
}

Fold StreamGroup::fold_of(const Launch::Step& step, const DeviceCall& call) const {
  std::vector<const std::byte*> arrived;
  arrived.reserve(step.sources.size() + 1);  // the own one
  for (const Launch::Source& from : step.sources) arrived.push_back(lies(from));
  const Instruction& in = at(step.rank, step.index);
  Fold fold = gpucomm::fold_of(call, in, std::move(arrived), {0, in.bytes});
  for (const Launch::Source& from : step.sources) {
    if (!from.answered) continue;
    fold.destinations.reserve(step.sources.size() + 1);
    const int answer = at(from.rank, from.step).answered_by;
    fold.destinations.push_back(call_of(from.rank, nullptr).target(at(from.rank, answer)));
  }
  return fold;
}

}  // namespace gpucomm
