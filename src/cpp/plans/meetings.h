// Which sends and receives of the ranks' plans meet: of a directed pair the k-th send the k-th receive.
#pragma once
#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

struct Meetings {
  std::map<std::tuple<int, int, int>, int> sender;  // (receiver, its step, peer) -> the peer's step
  std::vector<size_t> sent;                         // pieces, by rank
  size_t messages = 0;
  int rounds = 0;
};

// Of the plans of all ranks, in order; throws invalid_argument where they are not, mismatch where a send or a
// receive meets none, the two do not fit, or the messages of a pair could overtake one another: one lane has
// them at each end.
Meetings meet(const std::vector<Plan>& plans);

}  // namespace gpucomm
