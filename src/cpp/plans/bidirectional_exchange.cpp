// bidirectional_exchange: the papers' BE: halve the vector with a partner at each step, then double it again.
// Source: arXiv:1611.04255 (cost table, BE); Rabenseifner 2004; van de Geijn for the broadcast.   Cost:
//   all_reduce, reduce 2 log p alpha + 2(p-1)/p n beta; broadcast (log p + p-1) alpha + 2(p-1)/p n beta.
// Any world: with q the largest power of two <= p, each of the p-q odd ranks below 2(p-q) first gives its
// whole array to its even neighbour (and gets the result from it in the end): n beta more each way.
#include <algorithm>

#include "plans/plan.h"

namespace gpucomm {
namespace {

enum Lane { kSend, kReceive };

class Exchange {
 public:
  Exchange(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        world_(request.world),
        root_(request.root),
        place_((request.rank - root_ + world_) % world_) {
    while (2 * q_ <= world_) q_ *= 2;
    extras_ = world_ - q_;
  }

  int core_size() const { return q_; }

  // One segment of all_reduce or reduce; `sums` is where partial sums live.
  void segment(int k, bool all, Place sums) {
    base_ = k * plan_.chunks;
    sums.base = base_;
    sums_ = sums;
    left_before_ = last_sent_;
    have_ = plan_.in_place ? Place{Space::output} : Place{Space::input};
    last_received_ = -1;
    const bool extra = place_ < 2 * extras_ && place_ % 2;
    if (extra) {
      send(place_ - 1, 0, plan_.chunks);
    } else {
      if (place_ < 2 * extras_) fold(place_ + 1, 0, plan_.chunks, false);
      ++round_;
      halve();
      all ? double_up() : gather();
    }
    if (extra) round_ += 1 + rounds_of_core();
    if (all && extra) receive(place_ - 1, 0, plan_.chunks);
    if (all && !extra && place_ < 2 * extras_) send(place_ + 1, 0, plan_.chunks);
    ++round_;
  }

  // Binomial scatter of p chunks, then round the ring.
  void broadcast(int k) {
    base_ = k * plan_.chunks;
    have_ = sums_ = {Space::output};
    last_received_ = -1;
    int depth = 0;
    while ((1 << depth) < world_) ++depth;
    const int reach = place_ ? place_ & -place_ : 1 << depth;
    auto run = [&](int first, int distance) { return std::min(first + distance, world_) - first; };
    const int behind = round_ + depth;
    auto level = [&](int distance) { return behind - 1 - __builtin_ctz(distance); };
    if (place_) round_ = level(reach), receive(place_ - reach, place_, run(place_, reach));
    for (int distance = reach / 2; distance; distance /= 2) {
      const int other = place_ + distance;
      if (other < world_) round_ = level(distance), send(other, other, run(other, distance));
    }
    round_ = behind;
    for (int step = 0; step < world_ - 1; ++step, ++round_) {
      send((place_ + 1) % world_, (place_ - step + world_) % world_, 1);
      receive((place_ - 1 + world_) % world_, (place_ - step - 1 + world_) % world_, 1);
    }
  }

 private:
  int rounds_of_core() const { return 2 * __builtin_ctz(q_); }
  int core_id() const { return place_ < 2 * extras_ ? place_ / 2 : place_ - extras_; }
  int place_of(int id) const { return id < extras_ ? 2 * id : id + extras_; }
  int rank_of(int place) const { return (place + root_) % world_; }

  void halve() {
    int low = 0;
    for (int half = q_ / 2; half; half /= 2, ++round_) {
      const bool upper = core_id() & half;
      const int partner = place_of(core_id() ^ half);
      send(partner, upper ? low : low + half, half);
      if (upper) low += half;
      fold(partner, low, half, half == 1);
    }
  }

  void double_up() {
    for (int half = 1; half < q_; half *= 2, ++round_) {
      const int mine = core_id() & -half, theirs = mine ^ half;
      send(place_of(core_id() ^ half), mine, half);
      receive(place_of(core_id() ^ half), theirs, half);
    }
  }

  // The chunks return to core id 0, which is the root, up a binomial tree.
  void gather() {
    for (int half = 1; half < q_; half *= 2, ++round_) {
      if (core_id() & (half - 1)) continue;
      if (core_id() & half)
        send(place_of(core_id() - half), core_id(), half);
      else
        receive(place_of(core_id() + half), core_id() + half, half);
    }
  }

  void send(int place, int chunk, int chunks) {
    Step step{.kind = StepKind::send,
              .piece = base_ + chunk,
              .pieces = chunks,
              .source = have_,
              .peers = {rank_of(place)},
              .lane = kSend,
              .round = round_};
    if (last_received_ >= 0) step.after = {last_received_};
    last_sent_ = plan_.add(step);
  }

  // A scratch slot is written only after the segment before has left it.
  void fold(int place, int chunk, int chunks, bool final) {
    Step step{.kind = StepKind::recv_reduce,
              .piece = base_ + chunk,
              .pieces = chunks,
              .source = have_,
              .target = sums_,
              .peers = {rank_of(place)},
              .lane = kReceive,
              .round = round_,
              .final = final};
    if (left_before_ >= 0 && sums_.space == Space::scratch) step.after = {left_before_};
    last_received_ = plan_.add(step);
    have_ = sums_;
  }

  void receive(int place, int chunk, int chunks) {
    last_received_ = plan_.add({.kind = StepKind::recv,
                                .piece = base_ + chunk,
                                .pieces = chunks,
                                .target = sums_,
                                .peers = {rank_of(place)},
                                .lane = kReceive,
                                .round = round_});
  }

  Plan& plan_;
  int world_, root_, place_, q_ = 1, extras_ = 0;
  int base_ = 0, round_ = 0, last_received_ = -1, last_sent_ = -1, left_before_ = -1;
  Place have_, sums_;  // where this rank's partial sums are now, and where folds put them
};

void build(const PlanRequest& request, Plan& plan) {
  Exchange exchange(request, plan);
  plan.segment_major = true;
  if (request.collective == Collective::broadcast) {
    plan.chunks = request.world;
    for (int k = 0; k < plan.segments; ++k) exchange.broadcast(k);
    return;
  }
  plan.chunks = exchange.core_size();
  const bool all = request.collective == Collective::all_reduce;
  const bool scratch = !all && request.rank != request.root;
  plan.scratch_slots = scratch ? 1 : 0;
  for (int k = 0; k < plan.segments; ++k)
    exchange.segment(k, all, {scratch ? Space::scratch : Space::output});
}

const Registry<Algorithm>::Add add{
    "bidirectional_exchange",
    {"recursive halving, then doubling (BE): least bytes in log p rounds; any world size",
     "BE of arXiv:1611.04255; Rabenseifner 2004",
     {Collective::all_reduce, Collective::reduce, Collective::broadcast},
     true,
     build}};

}  // namespace
}  // namespace gpucomm
