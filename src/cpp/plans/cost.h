// The cost of a plan: its steps list-scheduled on a model of the links.
#pragma once
#include <string>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

// A message of b bytes occupies what it travels on for alpha + b beta and is there lambda later.
struct Links {
  // switch: each rank has one port in and one out. chain: each neighbour pair has its own full-duplex link,
  // and a message takes every link on its route. nodes: each node has one port in and one out, with these
  // figures, and its ranks a switch among themselves.
  enum class Kind { switched, chain, nodes } kind = Kind::switched;
  double alpha = 5e-6;  // overhead, s a message
  double lambda = 0;    // latency (propagation, pipelined), s
  double beta = 1e-9;   // s a byte
  double gamma = 0;     // s a byte reduced or copied, each source
  // Of kind nodes: the node of each rank, and what holds inside one.
  std::vector<int> nodes;
  double inner_alpha = 0, inner_lambda = 0, inner_beta = 0;
};

struct Event {
  int rank, step, peer;  // peer: where a send goes to; -1 for a local step
  double start_s, end_s;
};

struct Schedule {
  double total_s = 0;
  std::vector<Event> events;
};

// `offset_bytes`: the layout in bytes, pieces + 1. Deterministic: ties go to the lower rank, then lane.
// Throws mismatch when the plans never finish.
Schedule schedule(const std::vector<Plan>& plans, const std::vector<size_t>& offset_bytes,
                  const Links& links);

// The total time of a call on `bytes`; where every rank has a part, on the largest multiple of the world.
// Plans are built rank by rank and forgotten, so that thousands of ranks fit into memory.
double total_time(std::string_view algorithm, PlanRequest request, size_t bytes, const Links& links);

}  // namespace gpucomm
