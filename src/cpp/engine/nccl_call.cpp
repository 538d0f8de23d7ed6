#include "engine/nccl_call.h"

#include <algorithm>
#include <utility>

#include "base/aligned.h"
#include "engine/recoding.h"
#include "plans/rounds.h"

namespace gpucomm {
namespace {

// Bytes that land in each round before they are folded.
class Landings {
 public:
  // Returns where in its round's.
  size_t add(int round, size_t bytes, size_t messages) {
    if (by_round_.size() <= static_cast<size_t>(round)) by_round_.resize(round + 1);
    return std::exchange(by_round_[round], by_round_[round] + round_up(bytes, kDeviceAlign) * messages);
  }
  size_t most() const {
    return by_round_.empty() ? 0 : *std::max_element(by_round_.begin(), by_round_.end());
  }

 private:
  std::vector<size_t> by_round_;
};

PlanRequest request_of(const Program& program, const std::vector<int>& nodes, bool in_place) {
  const Shape& shape = program.shape;
  return {shape.collective, program.world, program.rank, shape.root,
          shape.segments,   in_place,      nodes,        adds_coded(shape)};
}

// The same on all ranks, which must cut alike.
size_t neediest(const Shape& shape, const std::vector<Plan>& plans,
                const std::vector<MessageRounds>& rounds) {
  size_t most = 0;
  const Layout layout = cut(plans[0], shape.count, 1, shape.counts);
  for (const Plan& plan : plans) {
    const std::vector<int> placed = place_steps(plan, rounds[plan.rank]);
    Landings landings;
    for (size_t i = 0; i < placed.size(); ++i) {
      const Step& step = plan.steps[i];
      if (step.kind == StepKind::recv_reduce)
        landings.add(placed[i], layout.count(step.piece, step.pieces) * size_of(shape.dtype),
                     step.peers.size());
    }
    most = std::max(most, landings.most());
  }
  return most;
}

void sort(Grouped& grouped, const std::vector<int>& placed) {
  Landings landings;
  for (size_t i = 0; i < placed.size(); ++i) {
    const Instruction& in = grouped.program.instructions[i];
    if (!in.bytes) continue;
    if (placed[i] < 0) {
      grouped.before.push_back(i);
      continue;
    }
    if (grouped.rounds.size() <= static_cast<size_t>(placed[i])) grouped.rounds.resize(placed[i] + 1);
    Grouped::Round& round = grouped.rounds[placed[i]];
    const bool folds = in.kind == StepKind::recv_reduce;
    if (travels(in.kind)) round.messages.push_back(i);
    if (folds || !travels(in.kind)) round.after.push_back(i);
    if (!folds) continue;
    grouped.landing[i] = landings.add(placed[i], in.bytes, in.peers.size());
  }
  grouped.landing_begin = round_up(grouped.program.scratch_bytes, kDeviceAlign);
  grouped.program.scratch_bytes = grouped.landing_begin + landings.most();
}

}  // namespace

Grouped compile_grouped(Shape shape, const std::vector<int>& nodes, int rank) {
  const bool segmented = Registry<Algorithm>::find(shape.algorithm).segmented;
  Grouped grouped;
  for (;; shape.segments = 2 * grouped.program.shape.segments) {
    grouped.program = compile(shape, nodes, rank);
    // The ranks do not know of each other whether they work in place.
    const auto plans =
        build_plans(shape.algorithm, request_of(grouped.program, nodes, shape.out_counts.empty()));
    const std::vector<MessageRounds> rounds = find_rounds(plans);
    const bool grows = segmented && grouped.program.shape.segments >= shape.segments;
    if (grows && neediest(shape, plans, rounds) > kMaxScratchBytes) continue;
    const Plan own = build_plan(shape.algorithm, request_of(grouped.program, nodes, shape.in_place));
    grouped.landing.resize(own.steps.size());
    const std::vector<int> placed = place_steps(own, rounds[rank]);
    for (Instruction& in : grouped.program.instructions)
      if (in.encodes >= 0 && placed[in.encodes] != placed[in.encodes - 1])
        part_recoding(grouped.program, in);  // the encode's slot is not free before its own round
    sort(grouped, placed);
    return grouped;
  }
}

bool NcclCall::advance(NcclCommunicator* communicator) {
  for (const int index : next_ ? grouped_.rounds[next_ - 1].after : grouped_.before) follow(index);
  if (next_ == grouped_.rounds.size()) return false;
  messages_.clear();
  for (const int index : grouped_.rounds[next_++].messages) add_messages(index);
  if (!messages_.empty()) communicator->exchange(messages_, call_.stream);
  return true;
}

std::byte* NcclCall::landing(int index, size_t k) const {
  return landing_ + grouped_.landing[index] + k * round_up(at(index).bytes, kDeviceAlign);
}

void NcclCall::add_messages(int index) {
  const Instruction& in = at(index);
  const size_t bytes = call_.message_bytes(in);
  if (in.kind == StepKind::send) messages_.push_back({true, in.peers[0], call_.source(in), bytes});
  if (in.kind == StepKind::recv) messages_.push_back({false, in.peers[0], call_.target(in), bytes});
  if (in.kind == StepKind::recv_reduce)
    for (size_t k = 0; k < in.peers.size(); ++k)
      messages_.push_back({false, in.peers[k], landing(index, k), bytes});
}

void NcclCall::follow(int index) {
  const Instruction& in = at(index);
  if (in.kind != StepKind::recv_reduce) return enqueue_local(call_, in);
  std::vector<const std::byte*> arrived;
  for (size_t k = 0; k < in.peers.size(); ++k) arrived.push_back(landing(index, k));
  enqueue_fold(call_, in, std::move(arrived), {0, in.bytes});
}

}  // namespace gpucomm
