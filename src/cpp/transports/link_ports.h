// The ports of emulated links: when each is free again, in words that all ranks share.
#pragma once
#include <cstdint>
#include <vector>

#include "transports/transport.h"

namespace gpucomm {

// A message of b bytes occupies its ports for alpha + b beta and is there lambda later (as plans/cost.h).
struct EmulatedLinks {
  bool chain = false;        // each neighbour pair has a link; else each node has one port out and one in
  bool half_duplex = false;  // both directions share a port, or a link
  // The node of each rank, of a switch each rank one of its own: inside a node nothing is slowed down.
  std::vector<int> nodes;
  uint64_t seed = 0;  // of the jitter
  struct Phase {
    double from_s = 0;          // since the links were made
    std::vector<double> betas;  // s a byte of each node's ports, of a chain of each link
    double alpha_s = 0, lambda_s = 0;
    double jitter_s = 0;  // up to so much is added to the latency of each message
  };
  std::vector<Phase> phases;  // in the order of time, the first from 0 s on
  uint64_t began_ns = 0;      // on the steady clock, of links made before; 0: they are made now
};

class LinkPorts {
 public:
  LinkPorts(Clocks* clocks, const EmulatedLinks& links, int rank, int world);

  // Takes the ports to a peer, as far as can be by now, for a message that comes at progress.comes, and
  // fills `progress` in. Returns 0 once it has all of them, or when to try again. A port passes messages in
  // the order in which they come to it, and a message comes to the next one when it begins to pass this one:
  // as in the cost model.
  uint64_t take(int peer, size_t bytes, uint64_t now, SendProgress& progress);

 private:
  struct Route {   // the ports on a message's way; none inside a node
    int from, to;  // nodes, of a chain ranks
    int first, step, count;
    bool receives;  // the last one is the receiver's, in use from the latency after the start on
  };
  Route route(int from, int to) const;
  int phase(uint64_t at) const;
  double beta(const Route& route, int phase) const;
  uint64_t pass(const Route& way, size_t bytes, SendProgress& progress);
  uint64_t jitter(int peer, int phase);

  Clocks* free_;  // when each port is
  EmulatedLinks links_;
  uint64_t began_;
  int rank_;
  std::vector<uint64_t> sent_;  // by peer
};

// When the links over these words were made, in ns of the steady clock.
uint64_t began(const Clocks* clocks);

// A fingerprint of the links, not 0.
uint64_t fingerprint(const EmulatedLinks& links);

}  // namespace gpucomm
