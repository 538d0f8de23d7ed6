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
  double alpha_s = 0, lambda_s = 0;
  double jitter_s = 0;  // up to so much is added to the latency of each message
  uint64_t seed = 0;    // of the jitter
  struct Rates {
    double from_s = 0;          // since the links were made
    std::vector<double> betas;  // s a byte of each node's ports, of a chain of each link
  };
  std::vector<Rates> rates;  // in the order of time, the first from 0 s on
  uint64_t began_ns = 0;     // on the steady clock, of links made before; 0: they are made now
};

class LinkPorts {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};

  // `meets`: a message waits until its receive is posted.
  LinkPorts(Clocks* clocks, const EmulatedLinks& links, int rank, int world, bool meets);

  // From then on this rank has a receive for the next message from a peer.
  void post(int peer, uint64_t since);

  // Takes the ports to a peer for a message that could leave at progress.since, and fills `progress` in: the
  // message starts as soon as it has a receive and all of them are free. Returns 0, or when to try again;
  // kNever: when the peer wakes this rank.
  // Of messages that want one port the one that can start first gets it, then the lowest rank's, and of its
  // own the one that was ready first, as in the cost model.
  uint64_t take(int peer, size_t bytes, uint64_t now, SendProgress& progress);

 private:
  struct Route {   // the ports on a message's way; none inside a node
    int from, to;  // nodes, of a chain ranks
    int first, step, count;
    uint64_t later;  // ns after the start from which the last one is used: a receiver's port, the latency
    int clock(int i) const { return first + i * step; }
    uint64_t shift(int i) const { return i + 1 == count ? later : 0; }
  };
  struct Waiting {  // a message that waits for its ports
    Route route;
    uint64_t since, start;
    int rank;
    bool mine;
  };
  Route route(int from, int to) const;
  double beta(const Route& route, uint64_t at) const;
  template <class Free>
  static uint64_t start(const Route& route, uint64_t since, Free free);
  bool occupy(const Route& route, const uint64_t* seen, uint64_t left);
  std::vector<Waiting> rivals(int peer, uint64_t latest) const;
  bool is_next(int peer, uint64_t begin, uint64_t tie) const;
  Clocks& waiting(int from, int to) const { return waiting_[from * world_ + to]; }
  Clocks& posted(int from, int to) const { return posted_[from * world_ + to]; }
  uint64_t jitter(int peer);

  // When each port is free; since when a message between two ranks waits for its ports, or 0; since when the
  // next one has a receive, or 0.
  Clocks *free_, *waiting_, *posted_;
  EmulatedLinks links_;
  uint64_t latency_, began_;
  int rank_, world_;
  bool meets_;
  std::vector<uint64_t> sent_;  // by peer
};

// When the links over these words were made, in ns of the steady clock.
uint64_t began(const Clocks* clocks);

// A fingerprint of the links, not 0.
uint64_t fingerprint(const EmulatedLinks& links);

}  // namespace gpucomm
