// linear_pipeline_middle: two chains, from both ends to the rank in their middle, which folds what both bring
// and sends each segment back to both at once. The pipeline fills in half the hops of linear_pipeline's
// all_reduce: (2h-1+m)(alpha + b beta) with h = floor(p/2) where every neighbour pair has its own full-duplex
// link. On a switch the middle's port carries twice what comes and goes, as any interior rank's does.
// Left folds from both ends, the middle's own between them: bits do not depend on the segment count.
#include "plans/chain.h"

namespace gpucomm {
namespace {

// Of the rank in the middle; hops: from the farther end.
void fold_and_return(Plan& plan, const std::vector<int>& neighbours, int hops) {
  const Place own{plan.in_place ? Space::output : Space::input};
  for (int k = 0; k < plan.segments; ++k) {
    const int done = plan.add({.kind = StepKind::recv_reduce,
                               .piece = k,
                               .source = own,
                               .target = {Space::output},
                               .peers = neighbours,
                               .lane = kReduceReceive,
                               .round = hops - 1 + k,
                               .final = true});
    for (size_t i = 0; i < neighbours.size(); ++i)
      plan.add({.kind = StepKind::send,
                .piece = k,
                .source = {Space::output},
                .peers = {neighbours[i]},
                .lane = kBroadcastSend + static_cast<int>(i),
                .round = hops + k,
                .after = {done}});
  }
}

void build(const PlanRequest& request, Plan& plan) {
  const int last = request.world - 1, middle = request.world / 2;
  if (request.rank == middle) {
    std::vector<int> neighbours{middle - 1};
    if (middle < last) neighbours.push_back(middle + 1);
    return fold_and_return(plan, neighbours, middle);
  }
  const bool below = request.rank < middle;
  Chain chain(request, plan, below ? 0 : last, below ? 1 : -1, 1 + (below ? middle : last - middle));
  // Where the chain from above is a hop shorter, it starts a round later.
  chain.broadcast(chain.reduce(Space::output, below ? 0 : middle - (last - middle)), middle);
}

const Registry<Algorithm>::Add add{
    "linear_pipeline_middle",
    {.summary = "two chains that meet in the middle, segment by segment, and back at once",
     .source = "after Linear Pipelining, arXiv:1611.04255",
     .collectives = {Collective::all_reduce},
     .segmented = true,
     .build = build,
     .from_world = 3}};

}  // namespace
}  // namespace gpucomm
