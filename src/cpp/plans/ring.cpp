// ring: every rank sends to its right neighbour only; each chunk is folded once round the ring, then
// forwarded. Source: Patarasuk & Yuan 2009 (bandwidth-optimal all-reduce).   Cost: all_reduce 2(p-1)(alpha +
// n/p beta). A link carries each byte once a pass, whatever the world; latency grows with p. Chunk r ends on
// rank r.
#include "plans/plan.h"

namespace gpucomm {
namespace {

// The hops of all segments in the order in which a rank handles them: two segments travel at a time, so that
// one is on the wire while the other is folded, and scratch stays at four pieces however long the message is.
struct Hop {
  int step, segment, round;
};

std::vector<Hop> hops(int steps, int segments) {
  std::vector<Hop> order;
  for (int first = 0; first < segments; first += 2)
    for (int step = 0; step < steps; ++step)
      for (int k = first; k < segments && k < first + 2; ++k)
        order.push_back({step, k, static_cast<int>(order.size())});
  return order;
}

enum Lane { kSend = 0, kReceive = 1 };

class Ring {
 public:
  Ring(const PlanRequest& request, Plan& plan)
      : plan_(plan), world_(request.world), rank_(request.rank), arrived_(plan.pieces(), -1) {}

  int chunk(int offset) const { return around(rank_, offset, world_); }
  int right() const { return chunk(1); }
  int left() const { return chunk(-1); }

  // Folds chunk c on its way c+1, c+2, ..., c; the last fold, on rank c, is final and goes to the output.
  // `through`: where partial sums wait: the output (all_reduce, which overwrites it later) or scratch.
  void reduce_scatter(Space through) {
    const Place source{plan_.in_place ? Space::output : Space::input};
    std::vector<int> reader(plan_.scratch_slots, -1);  // the send that last read a scratch slot
    std::vector<Place> waiting(plan_.pieces());
    for (const Hop& hop : hops(world_ - 1, plan_.segments)) {
      const int out = plan_.piece(chunk(-1 - hop.step), hop.segment);
      const int in = plan_.piece(chunk(-2 - hop.step), hop.segment);
      const int sent = send(out, hop.step ? waiting[out] : source, hop.round);
      if (hop.step && waiting[out].space == Space::scratch) reader[waiting[out].slot] = sent;
      const bool final = hop.step == world_ - 2;
      Place target{Space::output};
      if (!final && through == Space::scratch) target = {through, hop.round % plan_.scratch_slots};
      Step step{.kind = StepKind::recv_reduce,
                .piece = in,
                .source = source,
                .target = target,
                .peers = {left()},
                .lane = kReceive,
                .round = hop.round,
                .final = final};
      if (target.space == Space::scratch && reader[target.slot] >= 0) step.after = {reader[target.slot]};
      waiting[in] = target;
      arrived_[in] = plan_.add(step);
    }
  }

  void all_gather(int first_round, Place own) {
    for (const Hop& hop : hops(world_ - 1, plan_.segments)) {
      const int out = plan_.piece(chunk(-hop.step), hop.segment);
      const int in = plan_.piece(chunk(-1 - hop.step), hop.segment);
      const int round = first_round + hop.round;
      send(out, hop.step ? Place{Space::output} : own, round);
      arrived_[in] = plan_.add({.kind = StepKind::recv,
                                .piece = in,
                                .target = {Space::output},
                                .peers = {left()},
                                .lane = kReceive,
                                .round = round});
    }
  }

 private:
  int send(int piece, Place from, int round) {
    Step step{.kind = StepKind::send,
              .piece = piece,
              .source = from,
              .peers = {right()},
              .lane = kSend,
              .round = round};
    if (arrived_[piece] >= 0) step.after = {arrived_[piece]};
    return plan_.add(step);
  }

  Plan& plan_;
  int world_, rank_;
  std::vector<int> arrived_;  // the step that last put a piece here
};

void build(const PlanRequest& request, Plan& plan) {
  plan.chunks = request.world;
  if (request.collective == Collective::all_reduce) {
    Ring ring(request, plan);
    ring.reduce_scatter(Space::output);
    ring.all_gather((request.world - 1) * plan.segments, {Space::output});
  } else if (request.collective == Collective::reduce_scatter) {
    plan.scratch_slots = request.world > 2 ? 4 : 0;
    Ring(request, plan).reduce_scatter(Space::scratch);
  } else {
    const Place own{request.in_place ? Space::output : Space::input};
    Ring(request, plan).all_gather(0, own);
    if (!request.in_place)
      plan.add({.kind = StepKind::copy,
                .piece = plan.piece(request.rank, 0),
                .pieces = plan.segments,
                .source = own,
                .target = {Space::output},
                .lane = kReceive});
  }
}

const Registry<Algorithm>::Add add{
    "ring",
    {"each rank sends to its right neighbour only; least bytes a link, latency grows with the world",
     "Patarasuk & Yuan 2009",
     {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter},
     true,
     build}};

}  // namespace
}  // namespace gpucomm
