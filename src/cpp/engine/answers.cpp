#include "engine/answers.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace gpucomm {
namespace {

struct Touch {  // of the output array
  size_t begin, end;
  int step;
};

class Pairing {
 public:
  explicit Pairing(Program& program) : steps_(program.instructions) {
    for (int i = 0; i < static_cast<int>(steps_.size()); ++i) add(i);
    std::sort(touches_.begin(), touches_.end(), [](const Touch& a, const Touch& b) {
      return std::tie(a.begin, a.step) < std::tie(b.begin, b.step);
    });
    size_t reach = 0;
    for (const Touch& touch : touches_) reach_.push_back(reach = std::max(reach, touch.end));
  }

  void run() {
    number();
    for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
      Instruction& in = steps_[i];
      if (in.kind == StepKind::send && !in.peers.empty()) find_answer(i);
      if (in.kind == StepKind::recv_reduce) find_answers(i);
    }
  }

 private:
  static bool in_output(const Place& place) { return place.space == Space::output; }

  void add(int i) {
    const Instruction& in = steps_[i];
    if (!in.bytes) return;
    const bool reads = in.kind != StepKind::recv, writes = in.kind != StepKind::send;
    if (reads && in_output(in.source)) touches_.push_back({in.source_offset, in.source_offset + in.bytes, i});
    if (writes && in_output(in.target) &&
        !(reads && in_output(in.source) && in.target_offset == in.source_offset))
      touches_.push_back({in.target_offset, in.target_offset + in.bytes, i});
  }

  // Messages to and from each peer are counted in the order of their one lane, which is that of the steps.
  void number() {
    std::map<int, uint32_t> sent, received;
    for (size_t i = 0; i < steps_.size(); ++i) {
      Instruction& in = steps_[i];
      if (in.kind == StepKind::send && !in.peers.empty()) in.number = ++sent[in.peers[0]];
      if (receives(in.kind))
        for (int peer : in.peers) {
          const uint32_t number = ++received[peer];
          if (in.kind == StepKind::recv) number_of_[static_cast<int>(i)] = number;
        }
    }
  }

  // The steps that touch these bytes and no others; none where some touch more or less than these.
  std::vector<int> exactly(size_t begin, size_t end) const {
    auto first = std::lower_bound(touches_.begin(), touches_.end(), begin,
                                  [](const Touch& touch, size_t at) { return touch.begin < at; });
    if (first != touches_.begin() && reach_[first - touches_.begin() - 1] > begin) return {};
    std::vector<int> steps;
    for (; first != touches_.end() && first->begin < end; ++first) {
      if (first->begin != begin || first->end != end) return {};
      steps.push_back(first->step);
    }
    return steps;
  }

  // What a send takes from one of the caller's arrays comes back to its place in the output, which no other
  // step touches.
  void find_answer(int i) {
    Instruction& in = steps_[i];
    if (!in_output(in.source) && in.source.space != Space::input) return;
    auto steps = exactly(in.source_offset, in.source_offset + in.bytes);
    std::erase(steps, i);
    if (steps.size() != 1 || steps[0] < i) return;
    const Instruction& back = steps_[steps[0]];
    if (back.kind == StepKind::recv && back.peers == in.peers)
      in.answer = number_of_.at(steps[0]), in.answered_by = steps[0];
  }

  bool follows(int later, int earlier) const {
    const Instruction &a = steps_[earlier], &b = steps_[later];
    return (a.lane == b.lane && later > earlier) ||
           std::find(b.after.begin(), b.after.end(), earlier) != b.after.end();
  }

  // A fold's result is not touched but by the sends that carry it away.
  void find_answers(int i) {
    Instruction& in = steps_[i];
    in.answers.assign(in.peers.size(), -1);
    if (!in_output(in.target)) return;
    for (int other : exactly(in.target_offset, in.target_offset + in.bytes)) {
      if (other == i) continue;
      const Instruction& away = steps_[other];
      if (away.kind != StepKind::send || !follows(other, i)) return in.answers.assign(in.peers.size(), -1);
      const auto peer = std::find(in.peers.begin(), in.peers.end(), away.peers.empty() ? -1 : away.peers[0]);
      if (peer != in.peers.end()) in.answers[peer - in.peers.begin()] = other;
    }
  }

  std::vector<Instruction>& steps_;
  std::vector<Touch> touches_;
  std::vector<size_t> reach_;  // how far the touches up to each one go
  std::map<int, uint32_t> number_of_;
};

}  // namespace

void pair_answers(Program& program) { Pairing(program).run(); }

}  // namespace gpucomm
