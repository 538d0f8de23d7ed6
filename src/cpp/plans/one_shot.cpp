// one_shot: every rank sends its whole array to every rank, and each folds all of them itself, in rank order.
// Source: ours (the "one-shot" of GPU libraries).   Cost: (p-1)(alpha + n beta), one hop: the least latency.
// All ranks fold the same operands in the same order, so their bits are equal. A barrier is one of no
// elements.
#include "plans/plan.h"

namespace gpucomm {
namespace {

// A fold waits for all of its sources together; the nearest comes first, so that all send to different ranks.
// The receiving lane is served first: in a barrier, who finds a message of another call there says so before
// it lets the others go on.
enum Lane { kReceive, kSend };  // kSend + distance

void build(const PlanRequest& request, Plan& plan) {
  const Place own{request.in_place ? Space::output : Space::input};
  // In place, others may still need our array.
  const Place sum{request.in_place ? Space::scratch : Space::output};
  plan.scratch_slots = request.in_place ? 1 : 0;
  std::vector<int> peers;
  for (int peer = 0; peer < request.world; ++peer)
    if (peer != request.rank) peers.push_back(peer);
  for (int k = 0; k < plan.segments; ++k) {
    std::vector<int> before;
    for (int distance = 1; distance < request.world; ++distance) {
      const int peer = (request.rank + distance) % request.world;
      before.push_back(plan.add({.kind = StepKind::send,
                                 .piece = k,
                                 .source = own,
                                 .peers = {peer},
                                 .lane = kSend + distance,
                                 .round = k}));
    }
    plan.add({.kind = StepKind::recv_reduce,
              .piece = k,
              .source = own,
              .target = sum,
              .peers = peers,
              .lane = kReceive,
              .round = k,
              .final = true});
    if (request.in_place)
      plan.add({.kind = StepKind::copy,
                .piece = k,
                .source = sum,
                .target = {Space::output},
                .lane = kReceive,
                .after = before});
  }
}

const Registry<Algorithm>::Add add{
    "one_shot",
    {"every rank sends all it has to every rank, one hop; for the shortest messages",
     "ours",
     {Collective::all_reduce},
     true,
     build}};

}  // namespace
}  // namespace gpucomm
