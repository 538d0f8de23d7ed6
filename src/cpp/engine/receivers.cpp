#include "engine/receivers.h"

#include <algorithm>

namespace gpucomm {

// Of a plan's pieces those that this rank folds: its core has just written what it sends of them, and will
// again in the next call.
static std::vector<bool> folded_pieces(const Plan& plan) {
  std::vector<bool> folded(plan.pieces());
  for (const Step& step : plan.steps)
    if (step.kind == StepKind::recv_reduce) std::fill_n(folded.begin() + step.piece, step.pieces, true);
  return folded;
}

// The k-th send to a peer meets the k-th step there that receives from us.
std::vector<Receiver> receivers_of(const Plan& plan, const std::vector<Plan>& all, size_t bytes) {
  constexpr size_t kLong = 512 << 10;
  std::vector<std::vector<Receiver>> theirs(plan.world);  // by peer, in order
  for (const Plan& other : all)
    for (const Step& step : other.steps)
      if (receives(step.kind))
        for (int peer : step.peers)
          if (peer == plan.rank)
            theirs[other.rank].push_back(step.kind == StepKind::recv ? Receiver::stores : Receiver::folds);
  std::vector<size_t> met(plan.world);
  const std::vector<bool> folded = folded_pieces(plan);
  const bool copies = bytes > kLong && std::count(folded.begin(), folded.end(), true) == 0;
  std::vector<Receiver> receivers(plan.steps.size(), Receiver::any);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind != StepKind::send) continue;
    const Receiver receiver = theirs[step.peers[0]].at(met[step.peers[0]]++);
    if (!folded[step.piece] && !(copies && receiver == Receiver::folds)) receivers[i] = receiver;
  }
  return receivers;
}

}  // namespace gpucomm
