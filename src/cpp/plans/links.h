// A model of the links between the ranks. Values only.
#pragma once
#include <vector>

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
  // Instead of beta the s a byte of each place: the ports of a rank, of a node, or the link from a rank to
  // the next. A message goes at the slowest rate on its way. Empty: beta everywhere.
  std::vector<double> betas;
};

// Of how many places the links of a world consist. Throws invalid_argument where they name other numbers of
// ranks or places.
int places(const Links& links, int world);

}  // namespace gpucomm
