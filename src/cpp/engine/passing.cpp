#include "engine/passing.h"

namespace gpucomm {
namespace {

class Marking {
 public:
  explicit Marking(Program& program)
      : program_(program), steps_(program.instructions), receives_(program.lanes) {
    for (const Instruction& in : steps_)
      if (receives(in.kind)) receives_[in.lane] = true;
  }

  void run() {
    for (const std::vector<int>& lane : program_.lane_steps)
      for (size_t k = 0; k < lane.size(); ++k) mark(lane[k], k + 1 < lane.size() ? lane[k + 1] : -1);
  }

 private:
  static bool uses(const Place& place, const Instruction& bringing) {
    return place.space == Space::coded && place.slot == bringing.target.slot;
  }

  // `next`: of its lane.
  void mark(int step, int next) {
    Instruction& in = steps_[step];
    const bool brings = in.kind == StepKind::encode || in.kind == StepKind::recv;
    if (!brings || in.target.space != Space::coded || !in.bytes || !find_users(step)) return;
    // Who receives drives the user's lane, which must not do the same.
    const bool fits = in.kind == StepKind::recv ? in.used_by >= 0 && !receives_[steps_[in.used_by].lane]
                                                : in.sent_by >= 0 && follows(in, next);
    if (!fits) in.sent_by = in.used_by = -1;
  }

  // What an encode leaves must be read here before anything else happens to it.
  static bool follows(const Instruction& encode, int next) {
    return encode.used_by < 0 || (encode.used_by == next && !encode.spared);
  }

  // Up to the next piece in the same slot; false: there are more than can be kept.
  bool find_users(int step) {
    Instruction& in = steps_[step];
    int sent_by = -1, used_by = -1;
    for (int i = step + 1; i < static_cast<int>(steps_.size()); ++i) {
      const Instruction& other = steps_[i];
      if (other.kind != StepKind::recv && uses(other.source, in)) {
        int& user = other.kind == StepKind::send ? sent_by : used_by;
        if (user >= 0 || other.bytes != in.bytes) return false;
        user = i;
      }
      if (other.kind == StepKind::send || !uses(other.target, in)) continue;
      if (other.kind == StepKind::reduce) return false;  // adds to it
      break;
    }
    in.sent_by = sent_by, in.used_by = used_by;
    return true;
  }

  Program& program_;
  std::vector<Instruction>& steps_;
  std::vector<bool> receives_;  // by lane: whether it has steps that do
};

}  // namespace

void mark_passing(Program& program) {
  if (program.shape.codec && program.shape.on_device) Marking(program).run();
}

}  // namespace gpucomm
