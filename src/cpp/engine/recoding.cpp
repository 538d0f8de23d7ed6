#include "engine/recoding.h"

namespace gpucomm {
namespace {

bool same(const Place& a, const Place& b) { return a.space == b.space && a.slot == b.slot; }

class Recodings {
 public:
  explicit Recodings(Program& program) : program_(program), steps_(program.instructions) {}

  void run() {
    for (const std::vector<int>& lane : program_.lane_steps)
      for (size_t k = 1; k < lane.size(); ++k) {
        if (recodes(lane[k - 1], lane[k])) pair(lane[k - 1], lane[k]);
        if (makes_room(lane[k - 1], lane[k])) spare(lane[k - 1], lane[k]);
      }
  }

 private:
  bool recodes(int fold, int encode) const {
    // What varies in size no host codes in one pass.
    if (!program_.shape.codec->traits().fixed_size && !program_.shape.on_device) return false;
    const Instruction &a = steps_[fold], &b = steps_[encode];
    return a.kind == StepKind::decode_reduce && b.kind == StepKind::encode && !a.final && a.bytes &&
           a.row == InRow::no && encode == fold + 1 && same(a.target, b.source) &&
           a.target_offset == b.source_offset && a.bytes == b.bytes && !is_used(a, encode);
  }

  // Whether anything but the encode reads the sum before all of it is written anew.
  bool is_used(const Instruction& sum, int encode) const {
    for (size_t i = encode + 1; i < steps_.size(); ++i) {
      const Instruction& in = steps_[i];
      const bool reads = in.kind != StepKind::recv, writes = in.kind != StepKind::send;
      const bool folds = in.kind == StepKind::reduce || in.kind == StepKind::decode_reduce;
      if (reads && touches(sum, in.source, in.source_offset, in.bytes)) return true;
      if (!writes || !touches(sum, in.target, in.target_offset, in.bytes)) continue;
      return folds || in.target_offset > sum.target_offset ||
             in.target_offset + in.bytes < sum.target_offset + sum.bytes;
    }
    return sum.target.space != Space::scratch;
  }

  static bool touches(const Instruction& sum, const Place& place, size_t offset, size_t bytes) {
    return same(sum.target, place) && offset < sum.target_offset + sum.bytes &&
           sum.target_offset < offset + bytes;
  }

  // The encode's slot must be free now already.
  void pair(int fold, int encode) {
    Instruction& in = steps_[fold];
    for (const int before : steps_[encode].after)
      if (before != fold) in.after.push_back(before);
    in.encodes = encode, steps_[encode].spared = true;
  }

  bool makes_room(int copy, int fold) const {
    const Instruction &room = steps_[copy], &in = steps_[fold];
    return room.kind == StepKind::copy && in.kind == StepKind::decode_reduce && in.row == InRow::no &&
           copy == fold - 1 && same(room.target, in.target) && room.target_offset == in.target_offset &&
           room.bytes == in.bytes;
  }

  void spare(int copy, int fold) { steps_[fold].operand = copy, steps_[copy].spared = true; }

  Program& program_;
  std::vector<Instruction>& steps_;
};

}  // namespace

void pair_recodings(Program& program) {
  if (program.shape.codec) Recodings(program).run();
}

void part_recoding(Program& program, Instruction& in) {
  for (const int other : {in.encodes, in.operand})
    if (other >= 0) program.instructions[other].spared = false;
  in.encodes = in.operand = -1;
}

}  // namespace gpucomm
