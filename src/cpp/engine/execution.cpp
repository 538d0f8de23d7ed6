#include "engine/execution.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/copy.h"
#include "base/cpus.h"
#include "codecs/coding.h"
#include "reduce/reduce.h"

namespace gpucomm {

// From how many bytes of the node's arrays on a folded chunk goes back in the slot that it came in. With 2
// MiB of cache to a core (Intel) copying it when it is sent was as fast or faster up to there; with 512 KiB
// (Zen 3) and 1 MiB (Zen 4) it never was.
static size_t least_kept() {
  constexpr long kLargeCache = 2 << 20;
  static const bool large = sysconf(_SC_LEVEL2_CACHE_SIZE) >= kLargeCache;
  return large ? 4 << 20 : 64 << 10;
}

void Execution::start(const Program& program, Transport& transport, const Arrays& arrays, std::byte* scratch,
                      const CallRecord& record) {
  program_ = &program, transport_ = &transport;
  error_ = arrays.error, lost_sq_ = arrays.lost_sq;
  if (error_)
    for (const auto& [begin, end] : program.exact) std::memset(error_ + begin, 0, end - begin);
  spaces_ = spaces_of(program, arrays, scratch);
  footprint_ = program.shape.count * size_of(program.shape.dtype) * program.ranks_here;
  keeps_ = footprint_ >= least_kept();
  expected_.start(program, transport, record);
  lanes_.resize(program.lanes);
  for (LaneState& lane : lanes_) lane.next = 0, lane.progress = {}, lane.loans.clear();
  done_.assign(program.instructions.size(), 0);
  taken_.assign(program.world, 0);
  answered_.assign(program.instructions.size(), Answered::no);
  remaining_ = program.instructions.size();
  encodes_ = decodes_ = 0;
}

bool Execution::advance() {
  bool progressed = false;
  for (size_t l = 0; l < lanes_.size(); ++l) progressed |= advance(lanes_[l], program_->lane_steps[l]);
  return progressed;
}

bool Execution::advance(LaneState& lane, const std::vector<int>& steps) {
  bool progressed = settle_loans(lane);
  while (lane.next < steps.size()) {
    const int step = steps[lane.next];
    const Instruction& in = program_->instructions[step];
    // While a peer still reads, only more sends may follow in the lane: they write nothing.
    if (!ready(in) || (!lane.loans.empty() && in.kind != StepKind::send)) break;
    const Outcome outcome = run(in, lane);
    progressed |= outcome != Outcome::waiting;
    if (lane.progress.lent)
      lane.loans.push_back({step, lane.progress});
    else if (outcome == Outcome::finished)
      finish(step);
    else
      break;
    lane.progress = {}, ++lane.next;
    if (in.kind != StepKind::send) break;  // peers may wait for what other lanes can send now
  }
  return progressed;
}

// In order: a peer reads messages in the order in which they were sent.
bool Execution::settle_loans(LaneState& lane) {
  bool settled = false;
  for (; !lane.loans.empty(); lane.loans.pop_front()) {
    auto& [step, progress] = lane.loans.front();
    if (!transport_->send(program_->instructions[step].peers[0], 0, nullptr, 0, progress)) break;
    finish(step), settled = true;
  }
  return settled;
}

void Execution::finish(int step) { done_[step] = 1, --remaining_; }

bool Execution::ready(const Instruction& in) const {
  for (int before : in.after)
    if (!done_[before]) return false;
  return true;
}

std::byte* Execution::at(const Place& place, size_t offset) const {
  return spaces_[static_cast<size_t>(place.space)] + offset;
}

// What no cache will hold until somebody reads it.
CopyBytes Execution::copy_for(const Instruction& in) const {
  return in.unread && footprint_ >= last_level_cache() ? copy_non_temporal : copy_bytes;
}

Execution::Outcome Execution::run(const Instruction& in, LaneState& lane) {
  if (in.spared) return Outcome::finished;
  if (in.kind == StepKind::recv) return in.coded ? receive_coded(in, lane) : receive(in, lane);
  if (in.kind == StepKind::recv_reduce) return receive_and_reduce(in, lane);
  if (in.kind == StepKind::send) return send(in, lane);
  if (in.coded || in.kind == StepKind::encode) return code(in), Outcome::finished;
  std::byte* target = at(in.target, in.target_offset);
  const std::byte* source = at(in.source, in.source_offset);
  if (in.kind == StepKind::reduce) {
    const void* sources[] = {target, source};
    fold(in, sources, 2, 0, in.bytes);
  } else if (in.bytes && target != source) {
    copy_for(in)(target, source, in.bytes);
  }
  return Outcome::finished;
}

Execution::Outcome Execution::send(const Instruction& in, LaneState& lane) {
  if (in.peers.empty()) return Outcome::finished;
  SendProgress& progress = lane.progress;
  const size_t before = progress.moved;
  progress.number = in.number, progress.receiver = in.receiver;
  progress.way = program_->shape.private_way, progress.footprint = footprint_;
  if ((progress.answer = in.answer)) {
    const Instruction& back = program_->instructions[in.answered_by];
    progress.answer_to = at(back.target, back.target_offset);
  }
  progress.answered = answered_[&in - program_->instructions.data()] == Answered::yes;
  const uint64_t tag = expected_.tag(in);
  const std::byte* source = at(in.source, in.source_offset);
  const size_t bytes = in.coded ? kCodedHeader + coded_size(source) : in.bytes;
  if (transport_->send(in.peers[0], tag, source, bytes, progress)) return Outcome::finished;
  return progress.moved > before ? Outcome::moved : Outcome::waiting;
}

Execution::Outcome Execution::receive(const Instruction& in, LaneState& lane) {
  if (in.peers.empty()) return Outcome::finished;
  SendProgress& progress = lane.progress;
  const CopyBytes copy = copy_for(in);
  Outcome outcome = Outcome::waiting;
  while (!progress.begun || progress.moved < in.bytes) {
    const Chunk* chunk = expected_.next(in.peers[0], in);
    if (!chunk) return outcome;
    const size_t bytes = chunk->bytes;
    std::byte* const target = at(in.target, in.target_offset) + progress.moved;
    if (!transport_->take(in.peers[0], *chunk, target, copy)) return outcome;
    progress.moved += bytes, progress.begun = true;
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
    sources_.clear(), answers_.clear(), homes_.clear();
    size_t bytes = in.bytes - progress.moved;
    for (size_t i = 0; i < in.peers.size(); ++i) {
      const int peer = in.peers[i], answer = in.answers[i];
      const Chunk* chunk = expected_.next(peer, in);
      if (!chunk) return outcome;
      const bool lent = answer >= 0 && chunk->answer == program_->instructions[answer].number;
      if (lent && answered_[answer] == Answered::no) answered_[answer] = Answered::yes;
      sources_.push_back(chunk->data + taken_[peer]);
      answers_.push_back(lent || (chunk->owned && keeps_) ? answer : -1);
      if (answers_[i] >= 0 && !chunk->copied)
        homes_.push_back(const_cast<std::byte*>(chunk->data) + taken_[peer]);
      bytes = std::min(bytes, chunk->bytes - taken_[peer]);
    }
    if (bytes) fold_and_answer(in, progress.moved, bytes);
    progress.moved += bytes, progress.begun = true;
    for (size_t i = 0; i < in.peers.size(); ++i) take(in.peers[i], answers_[i], progress.moved, bytes);
    outcome = Outcome::moved;
  }
  return Outcome::finished;
}

// So many more bytes of the peer's chunk are folded; with them the fold is at `moved`.
void Execution::take(int peer, int answer, size_t moved, size_t bytes) {
  taken_[peer] += bytes;
  const Chunk& chunk = *transport_->peek(peer);
  if (taken_[peer] < chunk.bytes) return;
  taken_[peer] = 0;
  if (answer < 0) return transport_->consume(peer);
  const Instruction& back = program_->instructions[answer];
  const size_t begin = moved - chunk.bytes;
  if (chunk.copied && !transport_->answer(peer, at(back.source, back.source_offset) + begin))
    answered_[answer] = Answered::failed;
  if (!chunk.owned) return transport_->consume(peer);
  transport_->keep(peer, {expected_.tag(back), back.number, begin});
}

// Where a source takes the result too, it is written there at once; into further ones block by block, while
// the caches hold both.
void Execution::fold_and_answer(const Instruction& in, size_t moved, size_t bytes) {
  constexpr size_t kBlockBytes = 4 << 10;  // of 2 to 128 KiB the best, with 2
  std::byte* const result = at(in.target, in.target_offset) + moved;
  const std::vector<std::byte*>& homes = homes_;
  sources_.insert(sources_.begin() + in.below, at(in.source, in.source_offset) + moved);
  const size_t step = homes.size() < 2 ? bytes : kBlockBytes;
  for (size_t begin = 0; begin < bytes; begin += step) {
    const size_t n = std::min(step, bytes - begin);
    std::byte* const twin = homes.empty() ? nullptr : homes[0] + begin;
    fold(in, sources_.data(), static_cast<int>(sources_.size()), moved + begin, n, twin);
    for (size_t i = 1; i < homes.size(); ++i) copy_bytes(homes[i] + begin, result + begin, n);
    for (const void*& source : sources_) source = static_cast<const std::byte*>(source) + n;
  }
}

void Execution::fold(const Instruction& in, const void* const* sources, int count, size_t moved, size_t bytes,
                     std::byte* twin) {
  const Shape& shape = program_->shape;
  const bool mean = shape.op == Op::mean;
  reduce(shape.dtype, mean ? Op::sum : shape.op, at(in.target, in.target_offset) + moved, sources, count,
         bytes / size_of(shape.dtype), mean && in.final ? program_->world : 1, twin);
}

}  // namespace gpucomm
