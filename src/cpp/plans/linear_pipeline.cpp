// linear_pipeline: the ranks form one chain; the message flows along it segment by segment.
// Source: Linear Pipelining, arXiv:1611.04255.   Cost of m segments of b bytes, p ranks:
//   broadcast, reduce (p-2+m)(alpha + b beta); all_reduce unfused twice that, fused (2p-3+m)(alpha + b beta)
//   where every neighbour pair has its own full-duplex link. Fused: the chain's end starts to broadcast a
//   segment as soon as it is reduced. On a switch an interior rank's port carries both: fusing gains nothing.
// The fold is a left fold in chain order, so its bits do not depend on the segment count.
// Another root rotates the chain: broadcast root, root+1, ...; reduce root+1, ..., root.
#include "plans/chain.h"

namespace gpucomm {
namespace {

void build_all_reduce(const PlanRequest& request, Plan& plan, bool fused) {
  Chain chain(request, plan, 0, 1, request.world);
  std::vector<int> ready = chain.reduce(Space::output);
  const int rounds = request.world - 1;
  if (!fused) ready.assign(plan.segments, ready.back());
  chain.broadcast(ready, fused ? rounds : rounds + plan.segments - 1);
}

void build_rooted(const PlanRequest& request, Plan& plan) {
  const int world = request.world;
  if (request.collective == Collective::reduce) {
    plan.scratch_slots = world > 2 ? 4 : 0;
    Chain(request, plan, (request.root + 1) % world, 1, world).reduce(Space::scratch);
  } else {
    Chain up(request, plan, (request.root + world - 1) % world, -1, world);  // its tail is the root
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
