// A communicator is opened: its arguments, its transports, and the links that these emulate.
#include <map>

#include "base/env.h"
#include "base/simd.h"
#include "bindings/collectives.h"
#include "transports/emulated.h"

namespace gpucomm {

static void check_emulated(const EmulatedLinks& links, const Links& model) {
  for (const auto& phase : links.phases) {
    std::vector<double> times{phase.alpha_s, phase.lambda_s, phase.jitter_s};
    times.insert(times.end(), phase.betas.begin(), phase.betas.end());
    for (double seconds : times)
      if (!(seconds >= 0 && seconds <= 60))
        fail(ErrorKind::invalid_argument, "times of emulated links must be in [0, 60] s, got ", seconds);
  }
  if (model.gamma)
    fail(ErrorKind::invalid_argument, "gamma must be 0 on emulated links: reducing is real there");
  if (model.inner_alpha || model.inner_beta || model.inner_lambda)
    fail(ErrorKind::invalid_argument, "the figures inside a node must be 0 on emulated links: they are real");
}

static std::optional<EmulatedLinks> emulated(const std::optional<Emulation>& e, int world) {
  if (!e) return {};
  const Links& l = e->links;
  const size_t count = places(l, world);
  EmulatedLinks links{l.kind == Links::Kind::chain, e->half_duplex, l.nodes, e->seed};
  for (int rank = 0; l.nodes.empty() && rank < world; ++rank) links.nodes.push_back(rank);
  const auto first = l.betas.empty() ? std::vector<double>(count, l.beta) : l.betas;
  links.phases.push_back({0, first, l.alpha, l.lambda, e->jitter_s});
  for (const auto& [from_s, betas, alpha_s, lambda_s, jitter_s] : e->script) {
    if (!(from_s > links.phases.back().from_s) || betas.size() != count)
      fail(ErrorKind::invalid_argument, "a script must name ", count, " rates from ascending times on, got ",
           betas.size(), " from ", from_s, " s on");
    links.phases.push_back({from_s, betas, alpha_s, lambda_s, jitter_s});
  }
  links.began_ns = e->began_ns;
  check_emulated(links, l);
  return links;
}

// Where nothing is said all ranks are on one node, and the wire numbers them as we do.
static void complete(Endpoint& endpoint) {
  const auto [rank, world] = std::pair(endpoint.rank, endpoint.world);
  if (world < 1) fail(ErrorKind::invalid_argument, "world must be at least 1, got ", world);
  if (rank < 0 || rank >= world)
    fail(ErrorKind::invalid_argument, "rank must be in [0, ", world, "), got ", rank);
  if (endpoint.nodes.empty()) endpoint.nodes.assign(world, 0);
  if (endpoint.wire_ranks.empty())
    for (int r = 0; r < world; ++r) endpoint.wire_ranks.push_back(r);
  for (const auto& [name, list] : {std::pair("nodes", &endpoint.nodes), {"wire_ranks", &endpoint.wire_ranks}})
    if (list->size() != static_cast<size_t>(world))
      fail(ErrorKind::invalid_argument, name, " must have an entry for each of ", world, " ranks, got ",
           list->size());
  std::map<int, int> numbers;  // nodes are 0, 1, ... in the order of their first ranks
  for (int& node : endpoint.nodes) node = numbers.try_emplace(node, numbers.size()).first->second;
}

PyCommunicator::PyCommunicator(const std::string& transport, Endpoint endpoint, double timeout_s,
                               const std::optional<Emulation>& emulation) {
  forked();
  env(), simd();  // what is wrong there is said here, not in another thread
  const Seconds timeout = checked_timeout(timeout_s);
  if (emulation && endpoint.nodes.empty()) endpoint.nodes = emulation->links.nodes;
  complete(endpoint);
  if (emulation && !emulation->links.nodes.empty() && endpoint.nodes != emulation->links.nodes)
    fail(ErrorKind::invalid_argument, "rank ", endpoint.rank, " of ", endpoint.world,
         " was given nodes, and emulated links between others: leave the nodes to the links");
  const std::optional<EmulatedLinks> links = emulated(emulation, endpoint.world);
  std::shared_ptr<Transport> collectives = open_transport(transport, endpoint, links);
  endpoint.channel = 1;
  auto messages = open_transport(transport, endpoint, links, collectives->clocks());
  const Census* census = collectives->census();
  const uint64_t identity = census ? census->identity : endpoint.identity;
  core_ = {new Communicator(std::move(collectives), std::move(messages),
                            emulation ? concat("emulated(", transport, ")") : transport, endpoint.rank,
                            endpoint.nodes, identity, timeout),
           [](const Communicator* core) {
             if (!forked()) delete core;  // what a child shares is its parent's to close
           }};
  if (emulation) core_->set_links(emulation->links);
  emulation_ = emulation;
  if (links) emulation_->began_ns = began(core_->transport().clocks());
  core_->set_interrupt(interrupted);
  core_->messages().set_interrupt(interrupted);
}

}  // namespace gpucomm
