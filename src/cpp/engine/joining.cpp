#include "engine/joining.h"

#include <utility>

namespace gpucomm {
namespace {

// Decodings that the next one of their track may take along.
struct Open {
  int first = -1, last = -1;  // launches; -1: none
};

class Joining {
 public:
  Joining(const std::vector<const Program*>& programs, std::vector<Launch>& list, std::vector<Ends>& before)
      : programs_(programs), list_(list), before_(before), joined_to_(list.size(), -1) {}

  void run() {
    for (int i = 0; i < static_cast<int>(list_.size()); ++i) {
      close_needed(i);
      Open& open = of(list_[i].track);
      if (!decodes(i)) {
        open = {};
      } else if (open.last >= 0 && step(open.last).final == step(i).final) {
        take_along(open.last, i);
        open.last = i;
      } else {
        open = {i, i};
      }
    }
    leave_out();
  }

 private:
  const Instruction& step(int launch) const {
    const Launch::Step& last = list_[launch].steps.back();
    return programs_[last.rank]->instructions[last.index];
  }
  bool decodes(int launch) const {
    const Instruction& in = step(launch);
    return in.kind == StepKind::decode && in.bytes && !in.spared;
  }
  Open& of(int track) {
    if (open_.size() <= static_cast<size_t>(track)) open_.resize(track + 1);
    return open_[track];
  }

  // What a launch comes after cannot come later.
  void close_needed(int launch) {
    for (const auto& [track, earlier] : before_[launch])
      if (track != list_[launch].track && of(track).last >= 0 && earlier >= of(track).first) of(track) = {};
  }

  void take_along(int earlier, int launch) {
    std::vector<Launch::Step> steps = std::move(list_[earlier].steps);
    steps.push_back(std::move(list_[launch].steps[0]));
    list_[launch].steps = std::move(steps);
    add_ends(before_[launch], before_[earlier]);
    joined_to_[earlier] = launch;
  }

  // Of a launch that was taken along, who took it in the end.
  int taker(int launch) const {
    while (joined_to_[launch] >= 0) launch = joined_to_[launch];
    return launch;
  }

  void leave_out() {
    std::vector<int> place(list_.size(), -1);
    std::vector<Launch> list;
    std::vector<Ends> before;
    for (size_t i = 0; i < list_.size(); ++i) {
      if (joined_to_[i] >= 0) continue;
      place[i] = static_cast<int>(list.size());
      list.push_back(std::move(list_[i])), before.push_back(std::move(before_[i]));
    }
    for (Ends& ends : before)
      for (auto& [track, launch] : ends) launch = place[taker(launch)];
    list_ = std::move(list), before_ = std::move(before);
  }

  const std::vector<const Program*>& programs_;
  std::vector<Launch>& list_;
  std::vector<Ends>& before_;
  std::vector<int> joined_to_;  // by launch; -1: it stays
  std::vector<Open> open_;      // by track
};

}  // namespace

void join_decodings(const std::vector<const Program*>& programs, std::vector<Launch>& list,
                    std::vector<Ends>& before) {
  Joining(programs, list, before).run();
}

}  // namespace gpucomm
