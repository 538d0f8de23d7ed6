// The ranks of a world as nodes.
#pragma once
#include <algorithm>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

class Nodes {
 public:
  Nodes(const PlanRequest& request) : node_of_(request.nodes) {
    if (node_of_.empty()) node_of_.assign(request.world, 0);
    for (int rank = 0; rank < request.world; ++rank) {
      members_.resize(std::max<size_t>(members_.size(), node_of_[rank] + 1));
      members_[node_of_[rank]].push_back(rank);
    }
  }

  int count() const { return static_cast<int>(members_.size()); }
  int of(int rank) const { return node_of_[rank]; }
  const std::vector<int>& members(int node) const { return members_[node]; }
  int largest() const {
    size_t most = 0;
    for (const auto& ranks : members_) most = std::max(most, ranks.size());
    return static_cast<int>(most);
  }
  std::vector<int> others(int rank) const {  // of its node
    std::vector<int> ranks = members_[node_of_[rank]];
    std::erase(ranks, rank);
    return ranks;
  }

 private:
  std::vector<int> node_of_;
  std::vector<std::vector<int>> members_;
};

}  // namespace gpucomm
