// A chain of ranks along which a message flows segment by segment: what linear pipelines are made of.
// Source: Linear Pipelining, arXiv:1611.04255.
#pragma once
#include <algorithm>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

enum ChainLane { kReduceReceive, kReduceSend, kBroadcastReceive, kBroadcastSend };

class Chain {
 public:
  // `first`: the rank at the chain's head; `direction`: 1 if its neighbour is first + 1, -1 if first - 1;
  // `ranks`: how many there are in it.
  Chain(const PlanRequest& request, Plan& plan, int first, int direction, int ranks)
      : plan_(plan),
        world_(request.world),
        first_(first),
        direction_(direction),
        ranks_(ranks),
        position_((direction * (request.rank - first) + world_) % world_) {}

  bool head() const { return position_ == 0; }
  bool tail() const { return position_ == ranks_ - 1; }
  int at(int position) const { return (first_ + direction_ * position + world_) % world_; }

  // Down the chain to its tail, which folds last. `through`: where an interior rank keeps its partial sum.
  // Returns, per segment, the step that made the result so far (-1 at the head).
  std::vector<int> reduce(Space through, int first_round = 0) {
    const Place own{plan_.in_place ? Space::output : Space::input};
    std::vector<int> done(plan_.segments, -1);
    std::vector<int> reader(plan_.scratch_slots, -1);
    for (int k = 0; k < plan_.segments; ++k) {
      Place partial = own;
      if (!head()) {
        partial = tail() || through == Space::output ? Place{Space::output}
                                                     : Place{through, k % std::max(1, plan_.scratch_slots)};
        Step step{.kind = StepKind::recv_reduce,
                  .piece = k,
                  .source = own,
                  .target = partial,
                  .peers = {at(position_ - 1)},
                  .lane = kReduceReceive,
                  .round = first_round + position_ - 1 + k,
                  .final = tail()};
        if (partial.space == Space::scratch && reader[partial.slot] >= 0) step.after = {reader[partial.slot]};
        done[k] = plan_.add(step);
      }
      if (tail()) continue;
      Step step{.kind = StepKind::send,
                .piece = k,
                .source = partial,
                .peers = {at(position_ + 1)},
                .lane = kReduceSend,
                .round = first_round + position_ + k};
      if (done[k] >= 0) step.after = {done[k]};
      const int sent = plan_.add(step);
      if (partial.space == Space::scratch) reader[partial.slot] = sent;
    }
    return done;
  }

  // Up the chain from its tail. `ready[k]`: the step after which the tail may send segment k (-1: at once);
  // elsewhere the step whose source must have left before segment k may be overwritten.
  void broadcast(const std::vector<int>& ready, int first_round) {
    for (int k = 0; k < plan_.segments; ++k) {
      int have = ready[k];
      if (!tail())
        have = plan_.add({.kind = StepKind::recv,
                          .piece = k,
                          .target = {Space::output},
                          .peers = {at(position_ + 1)},
                          .lane = kBroadcastReceive,
                          .round = first_round + ranks_ - 2 - position_ + k});
      if (head()) continue;
      Step step{.kind = StepKind::send,
                .piece = k,
                .source = {Space::output},
                .peers = {at(position_ - 1)},
                .lane = kBroadcastSend,
                .round = first_round + ranks_ - 1 - position_ + k};
      if (have >= 0) step.after = {have};
      plan_.add(step);
    }
  }

 private:
  Plan& plan_;
  int world_, first_, direction_, ranks_, position_;
};

}  // namespace gpucomm
