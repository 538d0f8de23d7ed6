// binomial_tree: the minimum spanning tree (MST) of the papers: log2 p rounds, the whole message in each.
// Source: arXiv:1611.04255 (cost table, MST).   Cost: broadcast, reduce ceil(log2 p)(alpha + n beta);
// all_reduce twice that; gather, scatter ceil(log2 p) alpha + (p-1)/p n beta (see range_tree.cpp). Few
// messages: for short ones. A parent folds its children in order of growing subtree.
#include "plans/plan.h"
#include "plans/range_tree.h"

namespace gpucomm {
namespace {

enum Lane { kUpReceive, kUpSend, kDownReceive, kDownSend };

class Tree {
 public:
  Tree(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        world_(request.world),
        root_(request.root),
        place_((request.rank - request.root + world_) % world_) {
    while ((1 << depth_) < world_) ++depth_;
  }

  // The distance to the parent in rotated ranks: the lowest set bit; the root's is beyond the world.
  int reach() const { return place_ ? place_ & -place_ : 1 << depth_; }
  int level(int distance) const { return __builtin_ctz(distance); }

  // Children's partial sums come up. Returns per segment the step that completed the root's result.
  std::vector<int> reduce(Space through) {
    const Place own{plan_.in_place ? Space::output : Space::input};
    const Place sum = place_ == 0 ? Place{Space::output} : Place{through, 0};
    std::vector<int> done(plan_.segments, -1);
    int sent = -1;
    for (int k = 0; k < plan_.segments; ++k) {
      Place partial = own;
      for (int distance = 1; distance < reach() && place_ + distance < world_; distance *= 2) {
        const bool final = place_ == 0 && distance * 2 >= world_;
        Step step{.kind = StepKind::recv_reduce,
                  .piece = k,
                  .source = partial,
                  .target = sum,
                  .peers = {rank(place_ + distance)},
                  .lane = kUpReceive,
                  .round = k * depth_ + level(distance),
                  .final = final};
        if (sum.space == Space::scratch && sent >= 0) step.after = {sent};
        done[k] = plan_.add(step);
        partial = sum;
      }
      if (place_ == 0) continue;
      Step step{.kind = StepKind::send,
                .piece = k,
                .source = partial,
                .peers = {rank(place_ - reach())},
                .lane = kUpSend,
                .round = k * depth_ + level(reach())};
      if (done[k] >= 0) step.after = {done[k]};
      sent = plan_.add(step);
    }
    return done;
  }

  // `ready[k]`: the step after which the root may send segment k.
  void broadcast(const std::vector<int>& ready, int first_round) {
    for (int k = 0; k < plan_.segments; ++k) {
      const int round = first_round + k * depth_ + depth_ - 1;
      int have = ready[k];
      if (place_)
        have = plan_.add({.kind = StepKind::recv,
                          .piece = k,
                          .target = {Space::output},
                          .peers = {rank(place_ - reach())},
                          .lane = kDownReceive,
                          .round = round - level(reach())});
      for (int distance = reach() / 2; distance; distance /= 2) {
        if (place_ + distance >= world_) continue;
        Step step{.kind = StepKind::send,
                  .piece = k,
                  .source = {Space::output},
                  .peers = {rank(place_ + distance)},
                  .lane = kDownSend,
                  .round = round - level(distance)};
        if (have >= 0) step.after = {have};
        plan_.add(step);
      }
    }
  }

  int rounds() const { return depth_ * plan_.segments; }

 private:
  int rank(int place) const { return (place + root_) % world_; }

  Plan& plan_;
  int world_, root_, place_, depth_ = 0;
};

void build(const PlanRequest& request, Plan& plan) {
  if (by_rank(request.collective)) return build_range_tree(request, plan);
  Tree tree(request, plan);
  std::vector<int> ready(plan.segments, -1);
  if (request.collective == Collective::broadcast) return tree.broadcast(ready, 0);
  const bool all = request.collective == Collective::all_reduce;
  plan.scratch_slots = all ? 0 : 1;
  ready = tree.reduce(all ? Space::output : Space::scratch);
  if (all) tree.broadcast(ready, tree.rounds());
}

const Registry<Algorithm>::Add add{
    "binomial_tree",
    {"minimum spanning tree (MST): log p rounds of the whole message; for short messages",
     "MST of arXiv:1611.04255",
     {Collective::all_reduce, Collective::reduce, Collective::broadcast, Collective::gather,
      Collective::scatter},
     true,
     build}};

}  // namespace
}  // namespace gpucomm
