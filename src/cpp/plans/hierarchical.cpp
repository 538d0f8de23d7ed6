// hierarchical: for ranks on several nodes, whose links are slower than what is inside a node.
// all_reduce: reduce-scatter inside each node, a ring across nodes for every part, all-gather inside. Source:
//   the usual composition (DASO, arXiv:2104.05588, and NCCL's users do so); any mix of node sizes: as many
//   parts as the largest node has ranks, part g with rank g mod size of each node.
//   A node's link carries 2 (N-1)/N n bytes each way for N nodes, whatever their sizes.
// broadcast, reduce: a linear pipeline along one rank of each node, directly inside each.
// With one node: direct.
#include "plans/nodes.h"

namespace gpucomm {
namespace {

enum Lane { kInside, kSend };  // receives inside; kSend + peer: sends; kSend + world + peer: from other nodes

class Hierarchical {
 public:
  Hierarchical(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        nodes_(request),
        world_(request.world),
        rank_(request.rank),
        node_(nodes_.of(rank_)),
        own_{request.in_place ? Space::output : Space::input} {}

  void all_reduce() {
    const int parts = nodes_.largest();
    plan_.chunks = parts * nodes_.count(), plan_.segment_major = true;
    arrived_.assign(plan_.pieces(), -1);
    // The next segments are folded inside while one is on its way across.
    constexpr int kAhead = 2;
    for (int t = 0; t < plan_.segments + kAhead; ++t) {
      if (t < plan_.segments) reduce_scatter(t);
      if (t < plan_.segments) across(t);
      if (t >= kAhead) all_gather(t - kAhead);
    }
  }

  void broadcast(int root) {
    const Chain chain = chain_from(root);
    for (int k = 0; k < plan_.segments; ++k) {
      std::vector<int> after;
      if (rank_ != root) {
        const int from = chain.leads ? chain.before : chain.leader;
        after = {
            receive(k, 1, from, 2 * k + (chain.leads ? 0 : 1), chain.leads ? across_lane(from) : kInside)};
      }
      if (!chain.leads) continue;
      if (chain.next >= 0) send(k, 1, {Space::output}, chain.next, 2 * k, after);
      for (int peer : nodes_.others(rank_)) send(k, 1, {Space::output}, peer, 2 * k + 1, after);
    }
  }

  void reduce(int root) {
    const Chain chain = chain_from(root);
    plan_.scratch_slots = 2;
    std::vector<int> sent(plan_.scratch_slots, -1);
    for (int k = 0; k < plan_.segments; ++k) {
      if (!chain.leads) {
        send(k, 1, own_, chain.leader, k, {});
        continue;
      }
      std::vector<int> peers = nodes_.others(rank_);
      if (chain.next >= 0) peers.insert(std::lower_bound(peers.begin(), peers.end(), chain.next), chain.next);
      const int slot = k % plan_.scratch_slots;
      Place partial = rank_ == root ? Place{Space::output} : Place{Space::scratch, slot};
      std::vector<int> after;
      if (peers.empty())
        partial = own_;
      else
        after = {fold(k, 1, own_, partial, peers, k, kInside, rank_ == root)};
      if (partial.space == Space::scratch && sent[slot] >= 0) plan_.steps[after[0]].after = {sent[slot]};
      if (rank_ != root) sent[slot] = send(k, 1, partial, chain.before, k, after);
    }
  }

 private:
  struct Chain {  // of one rank of each node, the root first
    int leader, before = -1, next = -1;
    bool leads;
  };

  Chain chain_from(int root) const {
    const int count = nodes_.count(), first = nodes_.of(root);
    auto leader = [&](int position) {
      return position ? nodes_.members((first + position) % count)[0] : root;
    };
    const int position = (node_ - first + count) % count;
    Chain chain{.leader = leader(position), .leads = leader(position) == rank_};
    if (position) chain.before = leader(position - 1);
    if (position + 1 < count) chain.next = leader(position + 1);
    return chain;
  }

  int owner(int node, int part) const {
    const auto& ranks = nodes_.members(node);
    return ranks[part % ranks.size()];
  }
  std::vector<int> own_parts() const {
    std::vector<int> parts;
    for (int g = 0; g < nodes_.largest(); ++g)
      if (owner(node_, g) == rank_) parts.push_back(g);
    return parts;
  }
  int piece(int part, int shard, int segment) const {
    return plan_.piece(part * nodes_.count() + shard, segment);
  }
  int rounds() const { return 2 * nodes_.count(); }  // of a segment: one inside, those across, one inside
  int across_lane(int peer) const { return kSend + world_ + peer; }

  void reduce_scatter(int k) {
    const std::vector<int> others = nodes_.others(rank_);
    const int shards = nodes_.count(), round = k * rounds();
    if (others.empty()) return;
    for (int g = 0; g < nodes_.largest(); ++g) {
      const int to = owner(node_, g);
      if (to != rank_) {
        send(piece(g, 0, k), shards, own_, to, round, {});
        continue;
      }
      const int folded =
          fold(piece(g, 0, k), shards, own_, {Space::output}, others, round, kInside, shards == 1);
      for (int s = 0; s < shards; ++s) arrived_[piece(g, s, k)] = folded;
    }
  }

  void across(int k) {
    const int count = nodes_.count();
    auto shard = [&](int offset) { return ((node_ + offset) % count + count) % count; };
    for (int hop = 0; hop < 2 * (count - 1); ++hop)
      for (int g : own_parts()) {
        const bool folding = hop < count - 1;
        const int back = folding ? hop + 1 : hop - (count - 1);
        const int out = piece(g, shard(-back), k), in = piece(g, shard(-back - 1), k);
        const int to = owner(shard(1), g), from = owner(shard(-1), g), round = k * rounds() + 1 + hop;
        send(out, 1, arrived_[out] < 0 ? own_ : Place{Space::output}, to, round, after(out));
        const Place own = arrived_[in] < 0 ? own_ : Place{Space::output};
        if (!folding)
          arrived_[in] = receive(in, 1, from, round, across_lane(from));
        else
          arrived_[in] = fold(in, 1, own, {Space::output}, {from}, round, across_lane(from), hop == count - 2,
                              after(in));
      }
  }

  void all_gather(int k) {
    const int shards = nodes_.count(), round = (k + 1) * rounds() - 1;
    const std::vector<int> others = nodes_.others(rank_);
    for (int g = 0; g < nodes_.largest() && !others.empty(); ++g) {
      const int from = owner(node_, g), first = piece(g, 0, k);
      if (from != rank_) {
        receive(first, shards, from, round, kInside);
        continue;
      }
      std::vector<int> ready(arrived_.begin() + first, arrived_.begin() + first + shards);
      for (int peer : others) send(first, shards, {Space::output}, peer, round, ready);
    }
  }

  std::vector<int> after(int piece) const {
    return arrived_[piece] < 0 ? std::vector<int>{} : std::vector<int>{arrived_[piece]};
  }
  int send(int piece, int pieces, Place from, int peer, int round, std::vector<int> after) {
    return plan_.add({.kind = StepKind::send,
                      .piece = piece,
                      .pieces = pieces,
                      .source = from,
                      .peers = {peer},
                      .lane = kSend + peer,
                      .round = round,
                      .after = std::move(after)});
  }
  int receive(int piece, int pieces, int peer, int round, int lane) {
    return plan_.add({.kind = StepKind::recv,
                      .piece = piece,
                      .pieces = pieces,
                      .target = {Space::output},
                      .peers = {peer},
                      .lane = lane,
                      .round = round});
  }
  int fold(int piece, int pieces, Place own, Place target, std::vector<int> peers, int round, int lane,
           bool final, std::vector<int> after = {}) {
    return plan_.add({.kind = StepKind::recv_reduce,
                      .piece = piece,
                      .pieces = pieces,
                      .source = own,
                      .target = target,
                      .peers = std::move(peers),
                      .lane = lane,
                      .round = round,
                      .after = std::move(after),
                      .final = final});
  }

  Plan& plan_;
  Nodes nodes_;
  int world_, rank_, node_;
  Place own_;
  std::vector<int> arrived_;  // the step that last put a piece here; -1: it is the input still
};

void build(const PlanRequest& request, Plan& plan) {
  Hierarchical builder(request, plan);
  if (request.collective == Collective::all_reduce) return builder.all_reduce();
  if (request.collective == Collective::broadcast) return builder.broadcast(request.root);
  builder.reduce(request.root);
}

const Registry<Algorithm>::Add add{
    "hierarchical",
    {.summary = "for several nodes: reduce-scatter inside, rings across, all-gather inside; pipelined chains "
                "for a root",
     .source = "ours, after DASO",
     .collectives = {Collective::all_reduce, Collective::broadcast, Collective::reduce},
     .segmented = true,
     .build = build,
     .across_nodes = true}};

}  // namespace
}  // namespace gpucomm
