#include "engine/program.h"

#include <algorithm>
#include <numeric>

#include "base/aligned.h"
#include "codecs/coding.h"
#include "engine/answers.h"
#include "engine/device_folds.h"
#include "engine/instructions.h"
#include "engine/passing.h"
#include "engine/receivers.h"
#include "engine/recoding.h"

namespace gpucomm {
namespace {

// Cuts fall on cache lines, and on the codec's blocks: both are powers of two.
size_t align_of(const Shape& shape) {
  return std::max<size_t>({1, 64 / size_of(shape.dtype), shape.codec ? shape.codec->traits().block : 1});
}

// The output of an all_to_all with uneven counts is cut otherwise than its input.
Layout cut_out(const Plan& plan, const Shape& shape) {
  const size_t count = std::accumulate(shape.out_counts.begin(), shape.out_counts.end(), size_t{0});
  return cut(plan, count, align_of(shape), shape.out_counts);
}

size_t padded(size_t bytes) { return round_up(bytes, 64); }

size_t coded_slot(const Plan& plan, const Layout& layout, const Shape& shape) {
  if (!plan.coded_slots) return 0;
  return padded(kCodedHeader +
                shape.codec->max_bytes(slot_elements(plan, layout, Space::coded), shape.dtype));
}

size_t wide_bytes(const Plan& plan, const Layout& layout, const Shape& shape) {
  return adds_wide(shape) ? padded(wide_elements(plan, layout) * sizeof(float)) : 0;
}

size_t scratch_of(const Plan& plan, const Layout& layout, const Shape& shape) {
  return padded(slot_elements(plan, layout, Space::scratch) * size_of(shape.dtype)) * plan.scratch_slots +
         coded_slot(plan, layout, shape) * plan.coded_slots + wide_bytes(plan, layout, shape);
}

void mark_rows(Program& program, const Plan& plan) {
  const std::vector<InRow> rows = rows_of(plan);
  for (size_t i = 0; i < rows.size(); ++i) program.instructions[i].row = rows[i];
}

// The message, but for the pieces that the program encodes and loses something of.
std::vector<std::pair<size_t, size_t>> exact_parts(const Program& program) {
  const Shape& shape = program.shape;
  std::vector<std::pair<size_t, size_t>> encoded, exact;
  if (shape.codec && shape.codec->traits().lossy)
    for (const Instruction& in : program.instructions)
      if (in.kind == StepKind::encode) encoded.push_back({in.message_offset, in.message_offset + in.bytes});
  std::sort(encoded.begin(), encoded.end());
  size_t done = 0;
  for (const auto& [begin, end] : encoded) {
    if (done < begin) exact.push_back({done, begin});
    done = std::max(done, end);
  }
  const size_t all = shape.count * size_of(shape.dtype);
  if (done < all) exact.push_back({done, all});
  return exact;
}

// Whether coded pieces are read where they were encoded, by whichever rank (launches.h): what only brings
// them needs no memory.
bool lends(const Shape& shape) { return shape.codec && shape.on_device && shape.way == DeviceWay::threads; }

// Moves the coded slots that are written together; returns their number.
int leave_out_lent_slots(Program& program, int slots) {
  std::vector<bool> written(slots);
  for (const Instruction& in : program.instructions) {
    const bool lent = in.kind == StepKind::recv && in.used_by >= 0;
    if (in.target.space == Space::coded && in.kind != StepKind::send && !lent) written[in.target.slot] = true;
  }
  std::vector<size_t> begins(slots);
  int kept = 0;
  for (int slot = 0; slot < slots; ++slot)
    if (written[slot]) begins[slot] = kept++ * program.coded_slot_bytes;
  for (Instruction& in : program.instructions) {
    if (in.source.space == Space::coded) in.source_offset = begins[in.source.slot];
    if (in.target.space == Space::coded) in.target_offset = begins[in.target.slot];
  }
  return kept;
}

// What a plan says, with its sizes. `all`: of all ranks.
Program filled(const Shape& shape, const Plan& plan, const std::vector<Plan>& all) {
  const size_t item = size_of(shape.dtype);
  const Layout layout = cut(plan, shape.count, align_of(shape), shape.counts);
  const Layout out_layout = shape.out_counts.empty() ? layout : cut_out(plan, shape);
  Program program;
  program.shape = shape, program.world = plan.world, program.rank = plan.rank;
  program.shape.segments = plan.segments;
  program.scratch_slot_bytes = padded(slot_elements(plan, layout, Space::scratch) * item);
  program.coded_slot_bytes = coded_slot(plan, layout, shape);
  const size_t own =
      plan.world > 1 && by_rank(shape.collective) ? layout.begin(plan.piece(plan.rank, 0)) * item : 0;
  program.input_shift = gathers(shape.collective) ? own : 0;
  program.output_shift = scatters(shape.collective) ? own : 0;
  add_instructions(program, plan, layout, out_layout, receivers_of(plan, all, shape.count * item));
  if (adds_wide(shape)) mark_rows(program, plan);
  pair_answers(program);
  pair_recodings(program);
  mark_passing(program);
  const int slots = lends(shape) ? leave_out_lent_slots(program, plan.coded_slots) : plan.coded_slots;
  program.coded_begin = program.scratch_slot_bytes * plan.scratch_slots;
  program.wide_begin = program.coded_begin + program.coded_slot_bytes * slots;
  program.scratch_bytes = program.wide_begin + wide_bytes(plan, layout, shape);
  return program;
}

bool only_sends(const Program& program) {
  bool sends = false;
  for (const Instruction& in : program.instructions) {
    if (in.peers.empty()) continue;
    if (receives(in.kind)) return false;
    sends |= in.kind == StepKind::send;
  }
  return sends;
}

// What is known of a program once its instructions are.
void complete(Program& program) {
  program.exact = exact_parts(program);
  program.record = make_record(program.shape);
  program.fingerprint = fingerprint_of(program.shape);
}

// Of the neediest rank.
size_t most_scratch(const Shape& shape, const std::vector<Plan>& all) {
  const Layout layout = cut(all[0], shape.count, align_of(shape), shape.counts);
  size_t most = 0;
  for (const Plan& plan : all)
    most = std::max(most,
                    lends(shape) ? filled(shape, plan, all).scratch_bytes : scratch_of(plan, layout, shape));
  return most;
}

}  // namespace

Spaces spaces_of(const Program& program, const Arrays& arrays, std::byte* scratch) {
  // Offsets count from the message's start; an array that holds only this rank's chunk starts later.
  auto shifted = [](const std::byte* p, size_t by) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(p) - by);
  };
  std::byte* input = shifted(arrays.input, program.input_shift);
  std::byte* output = shifted(arrays.output, program.output_shift);
  // In place builders call the one array "output". All of it is there, whichever part the caller passed.
  if (program.shape.in_place) input = output = scatters(program.shape.collective) ? input : output;
  return {input, output, scratch, scratch + program.coded_begin};
}

Program compile(const Shape& shape, const std::vector<int>& nodes, int rank) {
  const int world = static_cast<int>(nodes.size());
  PlanRequest request{shape.collective, world, rank, shape.root, shape.segments, shape.in_place, nodes};
  request.additive = adds_coded(shape), request.lends = lends(shape);
  for (;; request.segments *= 2) {
    // All ranks must cut alike, but only some may need scratch: all look at the neediest, in place.
    PlanRequest any = request;
    any.in_place = shape.out_counts.empty();
    const std::vector<Plan> all = build_plans(shape.algorithm, any);
    if (shape.on_device) check_device_folds(all);
    if (most_scratch(shape, all) > kMaxScratchBytes && Registry<Algorithm>::find(shape.algorithm).segmented)
      continue;
    Program program = filled(shape, build_plan(shape.algorithm, request), all);
    program.ranks_here = static_cast<int>(std::count(nodes.begin(), nodes.end(), nodes[rank]));
    complete(program);
    program.only_sends = only_sends(program);
    return program;
  }
}

Program opaque(const Shape& shape, int rank, int world) {
  Program program;
  program.shape = shape, program.world = world, program.rank = rank;
  program.shape.segments = 1;
  complete(program);
  return program;
}

}  // namespace gpucomm
