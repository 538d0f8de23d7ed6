#include "plans/meetings.h"

#include <algorithm>
#include <utility>

#include "plans/plan_fault.h"

namespace gpucomm {
namespace {

using Pair = std::pair<int, int>;  // from, to
using Steps = std::map<Pair, std::vector<int>>;

// Of all_to_all the ends count differently: by receiver and by sender. The results tell what came.
bool fit(const Step& out, const Step& in, Collective collective) {
  const bool same = out.piece == in.piece || collective == Collective::all_to_all;
  return same && out.pieces == in.pieces && out.round == in.round && coded(out.source) == coded(in.target);
}

void match(const std::vector<Plan>& plans, Pair pair, const std::vector<int>& out, const std::vector<int>& in,
           Meetings& found) {
  const auto& [from, to] = pair;
  const Plan &source = plans[from], &target = plans[to];
  for (size_t k = 0; k < out.size(); ++k) {
    const Step& a = source.steps[out[k]];
    if (k >= in.size()) plan_fault(source, out[k], "sends a message that rank ", to, " never receives");
    const Step& b = target.steps[in[k]];
    if (!fit(a, b, source.collective))
      plan_fault(source, out[k], "meets step ", in[k], " of rank ", to, ", which expects piece ", b.piece,
                 "+", b.pieces, " in round ", b.round);
    if (a.lane != source.steps[out[0]].lane || b.lane != target.steps[in[0]].lane)
      plan_fault(source, out[k], "shares its peer with another lane: messages to rank ", to,
                 " could overtake");
    found.sender[{to, in[k], from}] = out[k];
    ++found.messages;
  }
  if (in.size() > out.size())
    plan_fault(target, in[out.size()], "waits for a message that rank ", from, " never sends");
}

// Adds what a rank sends and receives.
void collect(const Plan& plan, Steps& sent, Steps& received, Meetings& found) {
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    for (int peer : step.peers)
      if (peer < 0 || peer >= plan.world || peer == plan.rank)
        plan_fault(plan, i, "names rank ", peer, " as its peer");
    if (step.kind == StepKind::send) {
      sent[{plan.rank, step.peers.at(0)}].push_back(i);
      found.sent[plan.rank] += step.pieces;
      found.rounds = std::max(found.rounds, step.round + 1);
    }
    if (receives(step.kind))
      for (int peer : step.peers) received[{peer, plan.rank}].push_back(i);
  }
}

}  // namespace

Meetings meet(const std::vector<Plan>& plans) {
  for (size_t r = 0; r < plans.size(); ++r)
    if (plans[r].rank != static_cast<int>(r) || plans[r].world != static_cast<int>(plans.size()))
      fail(ErrorKind::invalid_argument, "the plans must be those of all ranks in order; place ", r, " of ",
           plans.size(), " holds that of rank ", plans[r].rank, " of ", plans[r].world);
  Meetings found;
  found.sent.assign(plans.size(), 0);
  Steps sent, received;
  for (const Plan& plan : plans) collect(plan, sent, received, found);
  for (const auto& [pair, in] : received) sent.try_emplace(pair);
  for (const auto& [pair, out] : sent) match(plans, pair, out, received[pair], found);
  return found;
}

}  // namespace gpucomm
