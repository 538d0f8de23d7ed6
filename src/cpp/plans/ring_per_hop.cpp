// ring_per_hop: the ring as if each message were compressed by its link: encoded before every hop, decoded
// after it. What coded_ring is compared with; folding is the same there. A gathered chunk is coded anew at
// each hop, so with most codecs the ranks' results differ: it offers no all_reduce.
// Source: Zhou et al. 2023 (IPDPS), the point-to-point scheme.
#include "plans/coded.h"

namespace gpucomm {
namespace {

using At = CodedSteps::At;

void build(const PlanRequest& request, Plan& plan) {
  plan.chunks = request.world;
  const int world = request.world, rank = request.rank;
  CodedSteps steps(plan);
  auto encoded = steps.slots(Space::coded, 2), received = steps.slots(Space::coded, 2);
  const At own{{plan.in_place ? Space::output : Space::input}};
  auto chunk = [&](int offset) { return ((rank + offset) % world + world) % world; };
  for (int k = 0; k < plan.segments; ++k) {
    At held = own;
    for (int hop = 0; hop < world - 1; ++hop) {
      const int out = plan.piece(chunk(-hop), k), in = plan.piece(chunk(-1 - hop), k);
      const int round = k * (world - 1) + hop;
      steps.send(steps.encode(held, out, encoded), out, chunk(1), round);
      held = steps.decode(steps.receive(in, chunk(-1), round, received), in, false);
    }
    if (!plan.in_place) steps.copy_out(own, plan.piece(rank, k));
  }
}

const Registry<Algorithm>::Add add{"ring_per_hop",
                                   {"the ring with messages coded anew at each hop; for comparison",
                                    "Zhou et al. 2023 (IPDPS)",
                                    {Collective::all_gather},
                                    true,
                                    build,
                                    false,
                                    true}};

}  // namespace
}  // namespace gpucomm
