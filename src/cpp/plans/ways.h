// What messages meet on their ways: figures, and ports, each free again at some time.
#pragma once
#include <vector>

#include "plans/links.h"

namespace gpucomm {

struct Way {
  double alpha, lambda, beta;
  int first, step, count;  // its ports
  double later;            // s after the others that the last port is used: a receiver's, the latency
};

class Ways {
 public:
  Ways(const Links& links, int world);

  Way between(int from, int to) const;
  // When, from then on, all ports of a way are free.
  double free(const Way& way, double at) const;
  void take(const Way& way, double until);

 private:
  double slowest(int low, int high) const;  // of places

  const Links& links_;
  // Of each rank's ports out and in, then of each node's; of a chain of each link's, up and down.
  std::vector<double> free_;
};

}  // namespace gpucomm
