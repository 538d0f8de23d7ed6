#include "plans/ways.h"

#include <algorithm>

#include "base/error.h"

namespace gpucomm {

int places(const Links& links, int world) {
  int count = world;
  const char* name = " ranks";
  if (links.kind == Links::Kind::chain) count = world - 1, name = " links";
  if (links.kind == Links::Kind::nodes) {
    if (links.nodes.size() != static_cast<size_t>(world))
      fail(ErrorKind::invalid_argument, "links between nodes name the nodes of ", links.nodes.size(),
           " ranks, but there are ", world);
    count = *std::max_element(links.nodes.begin(), links.nodes.end()) + 1, name = " nodes";
  }
  if (!links.betas.empty() && links.betas.size() != static_cast<size_t>(count))
    fail(ErrorKind::invalid_argument, "betas must have an entry for each of ", count, name, ", got ",
         links.betas.size());
  return count;
}

Ways::Ways(const Links& links, int world) : links_(links), free_(4 * world, 0.0) { places(links, world); }

Way Ways::between(int from, int to) const {
  if (links_.kind == Links::Kind::chain) {
    const auto [low, high] = std::minmax(from, to);
    const double beta = links_.betas.empty() ? links_.beta : slowest(low, high);
    if (from < to) return {links_.alpha, links_.lambda, beta, 2 * from, 2, to - from, 0};
    return {links_.alpha, links_.lambda, beta, 2 * from - 1, -2, from - to, 0};
  }
  int a = from, b = to, first = 0;
  if (links_.kind == Links::Kind::nodes) {
    a = links_.nodes[from], b = links_.nodes[to], first = 2 * static_cast<int>(links_.nodes.size());
    if (a == b)
      return {links_.inner_alpha, links_.inner_lambda, links_.inner_beta, 2 * from, 2 * (to - from) + 1, 2,
              links_.inner_lambda};
  }
  const double beta = links_.betas.empty() ? links_.beta : std::max(links_.betas[a], links_.betas[b]);
  return {links_.alpha, links_.lambda, beta, first + 2 * a, 2 * (b - a) + 1, 2, links_.lambda};
}

double Ways::slowest(int low, int high) const {
  return *std::max_element(links_.betas.begin() + low, links_.betas.begin() + high);
}

double Ways::pass(const Way& way, int port, double at, double length) {
  double& free = free_[way.first + port * way.step];
  const double later = port + 1 == way.count ? way.later : 0;
  const double begin = std::max(at, free - later);
  free = begin + length + later;
  return begin;
}

}  // namespace gpucomm
