#include "engine/execution.h"

#include <algorithm>
#include <cstring>

#include "reduce/reduce.h"

namespace gpucomm {

static constexpr auto kPatience = std::chrono::milliseconds(500);

void Execution::start(const Program& program, Transport& transport, const Arrays& arrays, std::byte* scratch,
                      uint64_t sequence) {
  program_ = &program, transport_ = &transport;
  // Offsets count from the message's start; an array that holds only this rank's chunk starts later.
  auto shifted = [](const std::byte* p, size_t by) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(p) - by);
  };
  spaces_[static_cast<int>(Space::input)] = shifted(arrays.input, program.input_shift);
  spaces_[static_cast<int>(Space::output)] = shifted(arrays.output, program.output_shift);
  spaces_[static_cast<int>(Space::scratch)] = scratch;
  if (program.shape.in_place) {
    // Builders call the one array "output". All of it is there, whichever part the caller passed.
    std::byte* whole = scatters(program.shape.collective) ? spaces_[static_cast<int>(Space::input)]
                                                          : spaces_[static_cast<int>(Space::output)];
    spaces_[static_cast<int>(Space::input)] = spaces_[static_cast<int>(Space::output)] = whole;
  }
  record_ = program.record;
  record_.sequence = sequence;
  record_.tag = tag_of(program.fingerprint, sequence);
  lanes_.assign(program.lanes, {});
  done_.assign(program.instructions.size(), 0);
  taken_.assign(program.world, 0);
  in_doubt_since_.reset();
  remaining_ = program.instructions.size();
}

bool Execution::advance() {
  bool progressed = false;
  for (size_t l = 0; l < lanes_.size(); ++l) {
    LaneState& lane = lanes_[l];
    const std::vector<int>& steps = program_->lane_steps[l];
    while (lane.next < steps.size()) {
      const Instruction& in = program_->instructions[steps[lane.next]];
      if (!ready(in)) break;
      const Outcome outcome = run(in, lane);
      progressed |= outcome != Outcome::waiting;
      if (outcome != Outcome::finished) break;
      done_[steps[lane.next++]] = 1;
      lane.progress = {};
      --remaining_;
    }
  }
  return progressed;
}

bool Execution::ready(const Instruction& in) const {
  for (int before : in.after)
    if (!done_[before]) return false;
  return true;
}

std::byte* Execution::at(const Place& place, size_t offset) const {
  return spaces_[static_cast<int>(place.space)] + offset;
}

Execution::Outcome Execution::run(const Instruction& in, LaneState& lane) {
  if (in.kind == StepKind::recv) return receive(in, lane);
  if (in.kind == StepKind::recv_reduce) return receive_and_reduce(in, lane);
  if (in.kind == StepKind::send) {
    if (in.peers.empty()) return Outcome::finished;
    const size_t before = lane.progress.moved;
    const std::byte* data = at(in.source, in.source_offset);
    const uint64_t tag = record_.tag + in.salt;
    if (transport_->send(in.peers[0], tag, data, in.bytes, lane.progress)) return Outcome::finished;
    return lane.progress.moved > before ? Outcome::moved : Outcome::waiting;
  }
  std::byte* target = at(in.target, in.target_offset);
  const std::byte* source = at(in.source, in.source_offset);
  if (in.kind == StepKind::reduce) {
    const void* sources[] = {target, source};
    fold(in, sources, 2, 0, in.bytes);
  } else if (in.bytes && target != source) {
    std::memcpy(target, source, in.bytes);
  }
  return Outcome::finished;
}

// The next chunk of this call from a peer. Another call's message is the ranks' disagreement.
const Chunk* Execution::expect(int peer, const Instruction& in) {
  const Chunk* chunk = transport_->peek(peer);
  if (!chunk || chunk->tag == record_.tag + in.salt) return chunk;
  if (in.salt && transport_->call(peer, record_.sequence).tag == record_.tag)
    fail(ErrorKind::mismatch, "counts and out_counts do not fit: rank ", program_->rank, " of ",
         program_->world, " expects ", program_->shape.out_counts[peer], " elements from rank ", peer, " in ",
         describe(record_), ", which sends another number");
  const auto [mine, theirs] = disagreement(peer, chunk->tag);
  if (!theirs.in_use && may_be_told()) return nullptr;
  fail(ErrorKind::mismatch, "the ranks do not make the same call: rank ", program_->rank, " of ",
       program_->world, " calls ", describe(mine), ", rank ", peer, " ",
       theirs.in_use ? describe(theirs) : "one that it no longer remembers");
}

// Where no shared memory tells what a peer calls, it is asked while this rank waits.
bool Execution::may_be_told() {
  const auto now = std::chrono::steady_clock::now();
  if (!in_doubt_since_) in_doubt_since_ = now;
  return now - *in_doubt_since_ < kPatience;
}

// The calls in which this rank and a peer, whose message carries `tag`, first differ: that may be an earlier
// one, which neither had reason to wait in.
std::pair<CallRecord, CallRecord> Execution::disagreement(int peer, uint64_t tag) const {
  CallRecord theirs;
  const uint64_t first = record_.sequence > 7 ? record_.sequence - 7 : 1;
  for (uint64_t s = first; s <= record_.sequence + 8; ++s) {
    const CallRecord record = transport_->call(peer, s), own = transport_->call(program_->rank, s);
    if (record.in_use && own.in_use && record.tag != own.tag) return {own, record};
    if (record.in_use && record.tag == tag) theirs = record;
  }
  return {record_, theirs};
}

Execution::Outcome Execution::receive(const Instruction& in, LaneState& lane) {
  if (in.peers.empty()) return Outcome::finished;
  SendProgress& progress = lane.progress;
  Outcome outcome = Outcome::waiting;
  while (!progress.begun || progress.moved < in.bytes) {
    const Chunk* chunk = expect(in.peers[0], in);
    if (!chunk) return outcome;
    if (chunk->bytes)
      std::memcpy(at(in.target, in.target_offset) + progress.moved, chunk->data, chunk->bytes);
    progress.moved += chunk->bytes, progress.begun = true;
    transport_->consume(in.peers[0]);
    outcome = Outcome::moved;
  }
  return Outcome::finished;
}

// As far as all sources are there; they may be cut into different chunks.
Execution::Outcome Execution::receive_and_reduce(const Instruction& in, LaneState& lane) {
  if (in.peers.empty()) return Outcome::finished;
  SendProgress& progress = lane.progress;
  Outcome outcome = Outcome::waiting;
  while (!progress.begun || progress.moved < in.bytes) {
    sources_.clear();
    size_t bytes = in.bytes - progress.moved;
    for (int peer : in.peers) {
      const Chunk* chunk = expect(peer, in);
      if (!chunk) return outcome;
      sources_.push_back(chunk->data + taken_[peer]);
      bytes = std::min(bytes, chunk->bytes - taken_[peer]);
    }
    if (bytes) {
      sources_.insert(sources_.begin() + in.below, at(in.source, in.source_offset) + progress.moved);
      fold(in, sources_.data(), static_cast<int>(sources_.size()), progress.moved, bytes);
    }
    progress.moved += bytes, progress.begun = true;
    for (int peer : in.peers) take(peer, bytes);
    outcome = Outcome::moved;
  }
  return Outcome::finished;
}

void Execution::take(int peer, size_t bytes) {
  taken_[peer] += bytes;
  if (taken_[peer] < transport_->peek(peer)->bytes) return;
  taken_[peer] = 0;
  transport_->consume(peer);
}

void Execution::fold(const Instruction& in, const void* const* sources, int count, size_t moved,
                     size_t bytes) {
  const Shape& shape = program_->shape;
  const bool mean = shape.op == Op::mean;
  reduce(shape.dtype, mean ? Op::sum : shape.op, at(in.target, in.target_offset) + moved, sources, count,
         bytes / size_of(shape.dtype), mean && in.final ? program_->world : 1);
}

}  // namespace gpucomm
