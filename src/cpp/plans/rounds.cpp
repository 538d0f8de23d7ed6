#include "plans/rounds.h"

#include <algorithm>
#include <deque>

#include "plans/meetings.h"
#include "plans/plan_fault.h"

namespace gpucomm {
namespace {

// The steps of one rank, each placed once all before it in its lane and its `after` are.
class Placing {
 public:
  explicit Placing(const Plan& plan) : plan_(plan), at_(plan.steps.size()), placed_(plan.steps.size()) {
    std::map<int, int> last;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const auto [found, first] = last.try_emplace(plan.steps[i].lane, -1);
      before_.push_back(std::exchange(found->second, static_cast<int>(i)));
    }
  }

  bool ready(int index) const {
    const auto& after = plan_.steps[index].after;
    return (before_[index] < 0 || placed_[before_[index]]) &&
           std::all_of(after.begin(), after.end(), [&](int before) { return placed_[before]; });
  }

  int earliest(int index) const {
    int round = travels(plan_.steps[index].kind) ? 0 : -1;
    for (const int before : plan_.steps[index].after)
      round = std::max(round, at_[before] + gap(index, before, false));
    if (before_[index] >= 0) round = std::max(round, at_[before_[index]] + gap(index, before_[index], true));
    return round;
  }

  void place(int index, int round) { at_[index] = round, placed_[index] = true; }
  bool placed(int index) const { return placed_[index]; }
  const std::vector<int>& all() const { return at_; }

 private:
  // Local steps and folds follow the messages of their round. Messages of one round go at once, so what one
  // needs, or frees, must be done before; but a fold only comes after them. A lane alone keeps messages of
  // one kind in order, which a group does too.
  int gap(int index, int before, bool lane) const {
    const Step &step = plan_.steps[index], &earlier = plan_.steps[before];
    if (!travels(step.kind)) return 0;
    const bool freed = step.kind == StepKind::recv_reduce && earlier.kind == StepKind::send && !lane;
    const bool alike = lane && step.kind == earlier.kind && step.round == earlier.round;
    return freed || alike ? 0 : 1;
  }

  const Plan& plan_;
  std::vector<int> before_;  // the step before in its lane
  std::vector<int> at_;
  std::vector<bool> placed_;
};

class Rounds {
 public:
  explicit Rounds(const std::vector<Plan>& plans)
      : plans_(plans), met_(meet(plans)), rounds_(plans.size()), lanes_(plans.size()) {
    for (const Plan& plan : plans) {
      ranks_.emplace_back(plan);
      for (size_t i = 0; i < plan.steps.size(); ++i) lanes_[plan.rank][plan.steps[i].lane].push_back(i);
    }
  }

  std::vector<MessageRounds> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const Plan& plan : plans_)
        for (auto& [lane, steps] : lanes_[plan.rank])
          for (; !steps.empty() && go(plan, steps.front()); moved = true) steps.pop_front();
    }
    for (const Plan& plan : plans_)
      for (auto& [lane, steps] : lanes_[plan.rank])
        if (!steps.empty())
          fail(ErrorKind::mismatch, label(plan), ": step ", steps.front(), " never runs: a deadlock");
    return std::move(rounds_);
  }

 private:
  // Whether the step is placed now, or has been: a send is with the receive that it meets.
  bool go(const Plan& plan, int index) {
    if (ranks_[plan.rank].placed(index)) return true;
    if (!ready(plan, index)) return false;
    place(plan, index);
    return true;
  }

  bool ready(const Plan& plan, int index) const {
    const Step& step = plan.steps[index];
    if (step.kind == StepKind::send || !ranks_[plan.rank].ready(index)) return false;
    if (!receives(step.kind)) return true;
    return std::all_of(step.peers.begin(), step.peers.end(), [&](int peer) {
      return ranks_[peer].ready(met_.sender.at({plan.rank, index, peer}));
    });
  }

  void place(const Plan& plan, int index) {
    const Step& step = plan.steps[index];
    int round = ranks_[plan.rank].earliest(index);
    if (receives(step.kind)) {
      for (const int peer : step.peers)
        round = std::max(round, ranks_[peer].earliest(met_.sender.at({plan.rank, index, peer})));
      for (const int peer : step.peers) {
        ranks_[peer].place(met_.sender.at({plan.rank, index, peer}), round);
        rounds_[peer][{true, plan.rank}].push_back(round);
        rounds_[plan.rank][{false, peer}].push_back(round);
      }
    }
    ranks_[plan.rank].place(index, round);
  }

  const std::vector<Plan>& plans_;
  const Meetings met_;
  std::vector<Placing> ranks_;
  std::vector<MessageRounds> rounds_;
  std::vector<std::map<int, std::deque<int>>> lanes_;  // by rank: steps that are not placed
};

}  // namespace

std::vector<MessageRounds> find_rounds(const std::vector<Plan>& plans) { return Rounds(plans).run(); }

std::vector<int> place_steps(const Plan& plan, const MessageRounds& rounds) {
  Placing placing(plan);
  std::map<std::pair<bool, int>, size_t> met;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (!placing.ready(i))
      fail(ErrorKind::mismatch, label(plan), ": step ", i, " comes before a step that it is after");
    int round = placing.earliest(i);
    for (const int peer : step.peers) {
      const std::pair<bool, int> key{step.kind == StepKind::send, peer};
      const auto found = rounds.find(key);
      if (found == rounds.end() || met[key] >= found->second.size() || found->second[met[key]] < round)
        fail(ErrorKind::mismatch, label(plan), ": step ", i, " needs what comes only in round ", round - 1);
      round = found->second[met[key]++];
    }
    placing.place(i, round);
  }
  return placing.all();
}

}  // namespace gpucomm
