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
  // A message comes to a port of its way and stays for that long, after those that came before it. When it
  // begins to pass.
  double pass(const Way& way, int port, double at, double length);

 private:
  double slowest(int low, int high) const;  // of places

  const Links& links_;
  // Of each rank's ports out and in, then of each node's; of a chain of each link's, up and down.
  std::vector<double> free_;
};

}  // namespace gpucomm
