#include "engine/side_by_side.h"

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

namespace gpucomm {
namespace {

// What a device takes as one has the same. The level says what comes after what; the number tells apart what
// it only takes by itself.
struct LaunchKind {
  int level, what;
  bool divides;
  size_t sources, number;
  auto operator<=>(const LaunchKind&) const = default;
};

enum What { kOther, kCopy, kFold, kEncode, kDecode, kAdd, kRecode };

What what_of(const Instruction& in) {
  if (in.kind == StepKind::recv || in.kind == StepKind::copy) return kCopy;
  if (in.kind == StepKind::recv_reduce) return kFold;
  if (in.kind == StepKind::encode) return kEncode;
  if (in.kind == StepKind::decode) return kDecode;
  if (in.kind != StepKind::decode_reduce || in.row != InRow::no) return kOther;
  return in.encodes >= 0 ? kRecode : kAdd;
}

LaunchKind kind_of(int level, const Program& program, const Instruction& in, size_t number) {
  const What what = what_of(in);
  const bool may = what == kFold || what == kDecode || what == kAdd;
  return {level, what, may && in.final && program.shape.op == Op::mean, what == kFold ? in.peers.size() : 0,
          what == kOther ? number : 0};
}

// Of two steps of a lane, whether the second one need not wait for the first: each writes what nobody has
// read since, and reads nothing of the other.
bool apart(const Instruction& a, const Instruction& b) {
  const StepKind kind = a.kind;
  const bool moves = kind == StepKind::recv || kind == StepKind::encode || kind == StepKind::decode;
  if (!moves || b.kind != kind) return false;
  if (a.target.space != b.target.space) return true;
  if (a.target.space == Space::coded) return a.target.slot != b.target.slot;
  return a.target_offset + a.bytes <= b.target_offset || b.target_offset + b.bytes <= a.target_offset;
}

class SideBySide {
 public:
  SideBySide(const std::vector<const Program*>& programs, const std::vector<Launch>& list)
      : programs_(programs), list_(list) {}

  std::vector<Launch> run(const std::vector<Ends>& before) {
    for (size_t i = 0; i < list_.size(); ++i) {
      levels_.push_back(level(list_[i].track, in(i), before[i]));
      const LaunchKind kind = kind_of(levels_[i], program(i), in(i), i);
      together_.try_emplace(kind, Launch{0, {}}).first->second.steps.push_back(list_[i].steps[0]);
    }
    std::vector<Launch> launches;
    for (auto& [kind, launch] : together_) launches.push_back(std::move(launch));
    return launches;
  }

 private:
  const Program& program(size_t launch) const { return *programs_[list_[launch].steps[0].rank]; }
  const Instruction& in(size_t launch) const {
    return program(launch).instructions[list_[launch].steps[0].index];
  }

  int level(int own, const Instruction& step, const Ends& before) const {
    int level = 0;
    for (const auto& [track, earlier] : before)
      level = std::max(level, levels_[earlier] + !(track == own && apart(in(earlier), step)));
    return level;
  }

  const std::vector<const Program*>& programs_;
  const std::vector<Launch>& list_;
  std::vector<int> levels_;
  std::map<LaunchKind, Launch> together_;
};

}  // namespace

void put_side_by_side(const std::vector<const Program*>& programs, Launches& launches,
                      const std::vector<Ends>& before) {
  launches.list = SideBySide(programs, launches.list).run(before);
  launches.tracks.resize(std::min<size_t>(launches.tracks.size(), 1));
}

}  // namespace gpucomm
