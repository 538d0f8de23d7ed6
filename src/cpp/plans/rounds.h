// The rounds in which messages travel where a library takes them in groups, as NCCL does: those of one round
// go out together, and nothing waits within it. Found for all ranks at once, so both ends of a message agree.
#pragma once
#include <map>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

// Of one rank: the rounds of its messages to (true) or from (false) each peer, in their order.
using MessageRounds = std::map<std::pair<bool, int>, std::vector<int>>;

// For the plans of all ranks. No round is later than it must be, but messages of one lane that their builder
// put into different rounds stay apart: what arrives in one round needs room at once. Throws mismatch where a
// message has no other end, or the plans deadlock.
std::vector<MessageRounds> find_rounds(const std::vector<Plan>& plans);

// When each step runs: of a send or recv its round; of any other step the round behind whose messages it
// comes, of recv_reduce its own, -1: before all. Steps behind the same round run in the order of the plan.
// Throws mismatch where the plan does not fit the rounds.
std::vector<int> place_steps(const Plan& plan, const MessageRounds& rounds);

}  // namespace gpucomm
