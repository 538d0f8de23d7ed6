#include "engine/instructions.h"

#include <algorithm>
#include <array>
#include <utility>

namespace gpucomm {
namespace {

bool only_writes(const Step& step) { return step.kind == StepKind::recv || step.kind == StepKind::copy; }

// Of a plan's pieces those in `space` that a step reads, or may.
std::vector<bool> pieces_read(const Plan& plan, Space space) {
  std::vector<bool> read(plan.pieces());
  for (const Step& step : plan.steps) {
    const bool reads = step.kind != StepKind::recv && step.source.space == space;
    if (reads || (!only_writes(step) && step.target.space == space))
      std::fill_n(read.begin() + step.piece, step.pieces, true);
  }
  return read;
}

class Filling {
 public:
  Filling(Program& program, const Plan& plan, const Layout& layout, const Layout& out_layout,
          const std::vector<Receiver>& receivers)
      : program_(program),
        plan_(plan),
        layout_(layout),
        out_layout_(out_layout),
        receivers_(receivers),
        item_(size_of(program.shape.dtype)),
        read_{pieces_read(plan, Space::input), pieces_read(plan, Space::output)},
        sent_(plan.world),
        received_(plan.world) {}

  void run() {
    for (const Step& step : plan_.steps) add(step);
    program_.lane_steps.resize(program_.lanes);
    for (size_t i = 0; i < program_.instructions.size(); ++i)
      program_.lane_steps[program_.instructions[i].lane].push_back(static_cast<int>(i));
  }

 private:
  const Layout& layout_of(const Place& place) const {
    return place.space == Space::output ? out_layout_ : layout_;
  }

  size_t offset(const Place& place, const Step& step) const {
    const Layout& layout = layout_of(place);
    if (place.space == Space::coded) return place.slot * program_.coded_slot_bytes;
    if (place.space != Space::scratch) return layout.begin(step.piece) * item_;
    const int base = place.base < 0 ? step.piece : place.base;
    return place.slot * program_.scratch_slot_bytes + (layout.begin(step.piece) - layout.begin(base)) * item_;
  }

  bool unread(const Step& step) const {
    const auto space = static_cast<size_t>(step.target.space);
    if (!only_writes(step) || space >= read_.size()) return false;
    const auto begin = read_[space].begin() + step.piece;
    return std::find(begin, begin + step.pieces, true) == begin + step.pieces;
  }

  uint64_t salt(const Step& step, const Layout& layout) const {
    if (program_.shape.out_counts.empty()) return 0;
    const int first = plan_.piece(plan_.chunk_of(step.piece), 0);
    return 1 + layout.count(first, plan_.segments);
  }

  void add(const Step& step) {
    const Layout& layout = layout_of(step.kind == StepKind::send ? step.source : step.target);
    Instruction in{step.kind,
                   step.final,
                   step.lane,
                   step.source,
                   step.target,
                   offset(step.source, step),
                   offset(step.target, step),
                   layout.count(step.piece, step.pieces) * item_,
                   layout.begin(step.piece) * item_,
                   {},
                   salt(step, layout),
                   0,
                   step.after};
    auto& met = step.kind == StepKind::send ? sent_ : received_;
    for (int peer : step.peers) {
      if (in.bytes || !met[peer]) in.peers.push_back(peer);
      met[peer] = true;
      in.below += peer < plan_.rank;
    }
    in.receiver = receivers_[program_.instructions.size()];
    in.unread = unread(step);
    in.coded = coded(step.kind == StepKind::recv ? step.target : step.source);
    program_.lanes = std::max(program_.lanes, step.lane + 1);
    program_.instructions.push_back(std::move(in));
  }

  Program& program_;
  const Plan& plan_;
  const Layout &layout_, &out_layout_;
  const std::vector<Receiver>& receivers_;
  const size_t item_;
  const std::array<std::vector<bool>, 2> read_;  // pieces of the input and of the output
  std::vector<bool> sent_, received_;
};

}  // namespace

void add_instructions(Program& program, const Plan& plan, const Layout& layout, const Layout& out_layout,
                      const std::vector<Receiver>& receivers) {
  Filling(program, plan, layout, out_layout, receivers).run();
}

}  // namespace gpucomm
