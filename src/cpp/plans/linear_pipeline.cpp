// linear_pipeline: the ranks form one chain; the message flows along it segment by segment.
// Source: Linear Pipelining, arXiv:1611.04255.   Cost of m segments of b bytes, p ranks:
//   broadcast, reduce (p-2+m)(alpha + b beta); all_reduce unfused twice that, fused (2p-3+m)(alpha + b beta)
//   where every neighbour pair has its own full-duplex link. Fused: the chain's end starts to broadcast a
//   segment as soon as it is reduced. On a switch an interior rank's port carries both: fusing gains nothing.
// The fold is a left fold in chain order, so its bits do not depend on the segment count.
// Another root rotates the chain: broadcast root, root+1, ...; reduce root+1, ..., root.
#include <algorithm>

#include "plans/plan.h"

namespace gpucomm {
namespace {

enum Lane { kReduceReceive, kReduceSend, kBroadcastReceive, kBroadcastSend };

class Chain {
 public:
  // `first`: the rank at the chain's head; `direction`: 1 if its neighbour is first + 1, -1 if first - 1.
  Chain(const PlanRequest& request, Plan& plan, int first, int direction = 1)
      : plan_(plan),
        world_(request.world),
        first_(first),
        direction_(direction),
        position_((direction * (request.rank - first) + world_) % world_) {}

  bool head() const { return position_ == 0; }
  bool tail() const { return position_ == world_ - 1; }
  int at(int position) const { return (first_ + direction_ * position + world_) % world_; }

  // Down the chain to its tail, which folds last. `through`: where an interior rank keeps its partial sum.
  // Returns, per segment, the step that made the tail's result (-1 elsewhere).
  std::vector<int> reduce(Space through) {
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
                  .round = position_ - 1 + k,
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
                .round = position_ + k};
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
                          .round = first_round + world_ - 2 - position_ + k});
      if (head()) continue;
      Step step{.kind = StepKind::send,
                .piece = k,
                .source = {Space::output},
                .peers = {at(position_ - 1)},
                .lane = kBroadcastSend,
                .round = first_round + world_ - 1 - position_ + k};
      if (have >= 0) step.after = {have};
      plan_.add(step);
    }
  }

 private:
  Plan& plan_;
  int world_, first_, direction_, position_;
};

void build_all_reduce(const PlanRequest& request, Plan& plan, bool fused) {
  Chain chain(request, plan, 0);
  std::vector<int> ready = chain.reduce(Space::output);
  const int rounds = request.world - 1;
  if (!fused) ready.assign(plan.segments, ready.back());
  chain.broadcast(ready, fused ? rounds : rounds + plan.segments - 1);
}

void build_rooted(const PlanRequest& request, Plan& plan) {
  const int world = request.world;
  if (request.collective == Collective::reduce) {
    plan.scratch_slots = world > 2 ? 4 : 0;
    Chain(request, plan, (request.root + 1) % world).reduce(Space::scratch);
  } else {
    Chain up(request, plan, (request.root + world - 1) % world, -1);  // its tail is the root
    up.broadcast(std::vector<int>(plan.segments, -1), 0);
  }
}

void build_fused(const PlanRequest& request, Plan& plan) {
  if (request.collective == Collective::all_reduce) return build_all_reduce(request, plan, true);
  build_rooted(request, plan);
}

void build_unfused(const PlanRequest& request, Plan& plan) { build_all_reduce(request, plan, false); }

const char* const kSource = "Linear Pipelining, arXiv:1611.04255";

const Registry<Algorithm>::Add add_fused{
    "linear_pipeline",
    {"a chain, segment by segment; all_reduce fused: a reduced segment starts back at once",
     kSource,
     {Collective::all_reduce, Collective::reduce, Collective::broadcast},
     true,
     build_fused}};

const Registry<Algorithm>::Add add_unfused{
    "linear_pipeline_unfused",
    {"a chain, segment by segment; the broadcast starts when the whole message is reduced",
     kSource,
     {Collective::all_reduce},
     true,
     build_unfused}};

}  // namespace
}  // namespace gpucomm
