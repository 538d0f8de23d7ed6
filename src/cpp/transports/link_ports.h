// The ports of emulated links: when each is free again, in words that all ranks share.
#pragma once
#include <cstdint>
#include <vector>

#include "transports/transport.h"

namespace gpucomm {

// A message of b bytes occupies its ports for alpha + b beta and is there lambda later (as plans/cost.h).
struct EmulatedLinks {
  bool chain = false;        // else a switch: each rank has one port out and one in
  bool half_duplex = false;  // both directions share a port (switch) or a link (chain)
  double alpha_s = 0, lambda_s = 0, beta_s = 0;
  double jitter_s = 0;  // up to so much is added to the latency of each message
  uint64_t seed = 0;    // of the jitter
};

class LinkPorts {
 public:
  LinkPorts(Clocks* clocks, const EmulatedLinks& links, int rank, int world);

  // Takes the ports to a peer for a message that could leave at progress.since, and fills `progress` in: the
  // message starts as soon as all of them are free. Returns 0, or when to try again if that is after `now`.
  // Of several that could start at once the lowest rank's does, as in the cost model.
  uint64_t take(int peer, size_t bytes, uint64_t now, SendProgress& progress);

 private:
  struct Port {
    int clock;
    uint64_t later;  // ns after the start from which it is used: a receiver's port, the latency
  };
  std::vector<Port> route(int rank, int peer) const;
  bool others_first(const std::vector<Port>& ports) const;
  void want(int clock, bool wanted);
  uint64_t jitter(int peer);

  Clocks* clocks_;
  Clocks* wanted_;  // by port: a bit for each rank that waits for nothing else
  EmulatedLinks links_;
  int rank_;
  std::vector<std::vector<Port>> routes_;  // by peer
  std::vector<uint64_t> sent_;             // by peer
};

// A fingerprint of the links, not 0.
uint64_t fingerprint(const EmulatedLinks& links);

}  // namespace gpucomm
