#include "engine/program.h"

#include <algorithm>
#include <cstring>

namespace gpucomm {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {  // splitmix64's finaliser
  hash += 0x9e3779b97f4a7c15 + value;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

CallRecord make_record(const Shape& shape) {
  CallRecord record;
  record.count = shape.count, record.root = shape.root, record.segments = shape.segments;
  record.collective = static_cast<uint8_t>(shape.collective);
  record.op = static_cast<uint8_t>(shape.op), record.dtype = static_cast<uint8_t>(shape.dtype);
  record.in_use = 1, record.barrier = shape.barrier;
  std::strncpy(record.algorithm.data(), shape.algorithm.c_str(), record.algorithm.size() - 1);
  return record;
}

uint64_t fingerprint_of(const CallRecord& record) {
  uint64_t words[CallRecord::kWords] = {};
  std::memcpy(words, &record, sizeof record);
  uint64_t hash = 0;
  for (uint64_t word : words) hash = mix(hash, word);
  return hash;
}

class Compiler {
 public:
  Compiler(const Plan& plan, const Layout& layout, size_t item, Program& program)
      : plan_(plan),
        layout_(layout),
        item_(item),
        program_(program),
        sent_(plan.world),
        received_(plan.world) {}

  void run() {
    for (const Step& step : plan_.steps) add(step);
    program_.lane_steps.resize(program_.lanes);
    for (size_t i = 0; i < program_.instructions.size(); ++i)
      program_.lane_steps[program_.instructions[i].lane].push_back(static_cast<int>(i));
  }

 private:
  size_t bytes_to(int piece) const { return layout_.begin(piece) * item_; }

  size_t offset(const Place& place, const Step& step) const {
    if (place.space != Space::scratch) return bytes_to(step.piece);
    const int base = place.base < 0 ? step.piece : place.base;
    return place.slot * program_.scratch_slot_bytes + bytes_to(step.piece) - bytes_to(base);
  }

  void add(const Step& step) {
    const bool known = step.kind == StepKind::send || step.kind == StepKind::recv ||
                       step.kind == StepKind::recv_reduce || step.kind == StepKind::reduce ||
                       step.kind == StepKind::copy;
    if (!known)
      fail(ErrorKind::unavailable, "a plan with '", name_of(step.kind),
           "' steps needs a codec or engine that this version does not have");
    Instruction in{step.kind,
                   step.final,
                   step.lane,
                   step.source,
                   step.target,
                   offset(step.source, step),
                   offset(step.target, step),
                   layout_.count(step.piece, step.pieces) * item_,
                   {},
                   0,
                   step.after};
    auto& met = step.kind == StepKind::send ? sent_ : received_;
    for (int peer : step.peers) {
      if (in.bytes || !met[peer]) in.peers.push_back(peer);
      met[peer] = true;
      in.below += peer < plan_.rank;
    }
    program_.lanes = std::max(program_.lanes, step.lane + 1);
    program_.instructions.push_back(std::move(in));
  }

  const Plan& plan_;
  const Layout& layout_;
  size_t item_;
  Program& program_;
  std::vector<bool> sent_, received_;
};

size_t align_of(size_t item) { return std::max<size_t>(1, 64 / item); }

}  // namespace

Program compile(const Shape& shape, int world, int rank) {
  const size_t item = size_of(shape.dtype);
  PlanRequest request{shape.collective, world, rank, shape.root, shape.segments, shape.in_place};
  Program program;
  program.shape = shape, program.world = world, program.rank = rank;
  for (;; request.segments *= 2) {
    const Plan plan = build_plan(shape.algorithm, request);
    const Layout layout = cut(plan, shape.count, align_of(item));
    const size_t slot = slot_elements(plan, layout, Space::scratch) * item;
    // All ranks must cut alike, but only some may need scratch: all look at the neediest, in place.
    size_t neediest = 0;
    PlanRequest any = request;
    any.in_place = true;
    for (const Plan& other : build_plans(shape.algorithm, any))
      neediest =
          std::max(neediest, slot_elements(other, layout, Space::scratch) * item * other.scratch_slots);
    if (neediest > kMaxScratchBytes && Registry<Algorithm>::find(shape.algorithm).segmented) continue;
    program.scratch_slot_bytes = (slot + 63) / 64 * 64;
    program.scratch_bytes = program.scratch_slot_bytes * plan.scratch_slots;
    const size_t own = world > 1 && by_rank(shape.collective) ? layout.begin(plan.piece(rank, 0)) * item : 0;
    program.input_shift = gathers(shape.collective) ? own : 0;
    program.output_shift = scatters(shape.collective) ? own : 0;
    program.shape.segments = plan.segments;
    Compiler(plan, layout, item, program).run();
    break;
  }
  program.record = make_record(program.shape);
  program.fingerprint = fingerprint_of(program.record);
  return program;
}

uint64_t tag_of(uint64_t fingerprint, uint64_t sequence) { return mix(fingerprint, sequence); }

std::string describe(const CallRecord& r) {
  if (r.barrier) return concat("barrier #", r.sequence);
  const auto collective = static_cast<Collective>(r.collective);
  std::string text = concat(name_of(collective), " #", r.sequence, " (");
  if (reduces(collective)) text += concat(name_of(static_cast<Op>(r.op)), " of ");
  text += concat(r.count, " ", name_of(static_cast<Dtype>(r.dtype)));
  if (rooted(collective)) text += concat(", root ", r.root);
  return text + concat(", algorithm ", r.algorithm.data(), ", ", r.segments,
                       r.segments == 1 ? " segment)" : " segments)");
}

}  // namespace gpucomm
