// algorithm="auto" and the number of segments: the cheapest candidate on the model of the links.
#pragma once
#include <map>
#include <string>
#include <tuple>

#include "engine/call.h"
#include "plans/cost.h"

namespace gpucomm {

struct Choice {
  std::string algorithm;
  int segments = 1;
  double cost_s = 0;
};

// Remembers choices per collective, size (in powers of two) and wish; the same on every rank that has the
// same links, for it computes from nothing else.
class Choices {
 public:
  // `shape.algorithm` "auto": any that offers the collective. `shape.segments` 0: the best of powers of two.
  // `nodes`: the node of each rank.
  const Choice& find(const Shape& shape, const std::vector<int>& nodes, const Links& links);
  void clear() { known_.clear(); }

 private:
  std::map<std::tuple<int, int, std::string, int, int>, Choice> known_;
};

}  // namespace gpucomm
