// direct: every rank sends to every rank; rank r folds chunk r of all in one pass, in rank order.
// Source: ours (the "two-shot" of GPU libraries).   Cost: all_reduce 2(p-1) alpha + 2(p-1)/p n beta, but only
// two dependent hops: best where latency, or waking a rank, costs more than messages; shared memory above
// all. Each contribution is rounded once, whatever p.
#include "plans/plan.h"

namespace gpucomm {
namespace {

// Messages to different peers go out at once, in a lane each: a fold waits for all of its sources together,
// so a rank that served its peers one after the other could block another's fold. Messages to one peer keep
// the order in which both ends add them here: scatter(k + 1) goes out before gather(k), so that the next
// segment is on its way while this one is folded. The nearest rank comes first, so that at any time all send
// to different ones. Lanes are served in their order: who comes last sends before it folds what is there
// already, or its peers would wait for that too.
class Direct {
 public:
  Direct(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        world_(request.world),
        rank_(request.rank),
        receive_lane_(world_ - 1),
        local_lane_(world_),
        own_{request.in_place ? Space::output : Space::input} {
    for (int distance = 1; distance < world_; ++distance) {
      to_.push_back((rank_ + distance) % world_);
      from_.push_back((rank_ - distance + world_) % world_);
    }
  }

  void scatter(int segment, int round) {
    for (int peer : to_) send(plan_.piece(peer, segment), own_, peer, round);
  }

  int fold(int segment, int round) {
    std::vector<int> peers;
    for (int peer = 0; peer < world_; ++peer)
      if (peer != rank_) peers.push_back(peer);
    return plan_.add({.kind = StepKind::recv_reduce,
                      .piece = plan_.piece(rank_, segment),
                      .source = own_,
                      .target = {Space::output},
                      .peers = peers,
                      .lane = receive_lane_,
                      .round = round,
                      .final = true});
  }

  void gather(int segment, int round, Place from, int after) {
    for (int peer : to_) {
      const int sent = send(plan_.piece(rank_, segment), from, peer, round);
      if (after >= 0) plan_.steps[sent].after = {after};
    }
  }

  void collect(int segment, int round) {
    for (int peer : from_) receive(plan_.piece(peer, segment), peer, round);
  }

  void all_reduce() {
    std::vector<int> folded(plan_.segments, -1);
    for (int k = 0; k <= plan_.segments; ++k) {
      if (k < plan_.segments) scatter(k, 2 * k);
      if (k < plan_.segments) folded[k] = fold(k, 2 * k);
      if (k > 0) gather(k - 1, 2 * k + 1, {Space::output}, folded[k - 1]);
      if (k > 0) collect(k - 1, 2 * k + 1);
    }
  }

  void rooted(int root, bool reduce) {
    for (int k = 0; k < plan_.segments; ++k) {
      if (rank_ != root)
        reduce ? send(k, own_, root, k) : receive(k, root, k);
      else if (reduce)
        plan_.steps[fold(0, k)].piece = k;
      else
        for (int peer : to_) send(k, {Space::output}, peer, k);
    }
  }

  // Every chunk between its rank and the root, and nothing to wait for on the way: segments gain nothing.
  void by_root(int root, bool gather) {
    plan_.segments = 1;
    if (rank_ == root) {
      gather ? collect(0, 0) : scatter(0, 0);
      own_shard();
    } else if (gather) {
      send(rank_, own_, root, 0);
    } else {
      receive(rank_, root, 0);
    }
  }

  // In place what comes waits in scratch until the block that it replaces has left.
  void all_to_all() {
    plan_.scratch_slots = world_ - 1;
    std::vector<int> copied(world_, -1);
    for (int k = 0; k < plan_.segments; ++k) {
      std::vector<int> sent(world_, -1);
      for (int peer : to_) sent[peer] = send(plan_.piece(peer, k), own_, peer, k);
      for (int peer : from_) {
        const int piece = plan_.piece(peer, k);
        const int received = receive(piece, peer, k);
        if (!plan_.in_place) continue;
        const Place held{Space::scratch, (rank_ - peer + world_) % world_ - 1};
        plan_.steps[received].target = held;
        if (k) plan_.steps[received].after = {copied[peer]};
        copied[peer] = copy(piece, 1, held);
        plan_.steps[copied[peer]].after = {sent[peer], received};
      }
    }
    own_shard();
  }

  void own_shard() {
    if (!plan_.in_place) copy(plan_.piece(rank_, 0), plan_.segments, own_);
  }

  Place own() const { return own_; }

 private:
  int send(int piece, Place from, int peer, int round) {
    return plan_.add({.kind = StepKind::send,
                      .piece = piece,
                      .source = from,
                      .peers = {peer},
                      .lane = (peer - rank_ + world_) % world_ - 1,
                      .round = round});
  }
  int receive(int piece, int peer, int round) {
    return plan_.add({.kind = StepKind::recv,
                      .piece = piece,
                      .target = {Space::output},
                      .peers = {peer},
                      .lane = receive_lane_,
                      .round = round});
  }
  int copy(int piece, int pieces, Place from) {
    return plan_.add({.kind = StepKind::copy,
                      .piece = piece,
                      .pieces = pieces,
                      .source = from,
                      .target = {Space::output},
                      .lane = local_lane_});
  }

  Plan& plan_;
  int world_, rank_;
  int receive_lane_, local_lane_;  // behind a lane of sends for each distance
  Place own_;
  std::vector<int> to_, from_;
};

void build(const PlanRequest& request, Plan& plan) {
  const Collective c = request.collective;
  const bool whole = c == Collective::reduce || c == Collective::broadcast;
  plan.chunks = whole ? 1 : request.world;
  plan.segment_major = c == Collective::all_reduce;
  Direct direct(request, plan);
  if (whole) return direct.rooted(request.root, c == Collective::reduce);
  if (rooted(c)) return direct.by_root(request.root, c == Collective::gather);
  if (c == Collective::all_reduce) return direct.all_reduce();
  if (c == Collective::all_to_all) return direct.all_to_all();
  for (int k = 0; k < plan.segments; ++k) {
    if (c == Collective::reduce_scatter) {
      direct.scatter(k, k);
      direct.fold(k, k);
    } else {
      direct.gather(k, k, direct.own(), -1);
      direct.collect(k, k);
    }
  }
  if (c == Collective::all_gather) direct.own_shard();
}

const Registry<Algorithm>::Add add{
    "direct",
    {"every rank to every rank, each folds its chunk of all in one pass; two hops; for shared memory",
     "ours",
     {Collective::all_reduce, Collective::reduce, Collective::broadcast, Collective::all_gather,
      Collective::reduce_scatter, Collective::gather, Collective::scatter, Collective::all_to_all},
     true,
     build}};

}  // namespace
}  // namespace gpucomm
