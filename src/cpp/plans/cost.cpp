#include "plans/cost.h"

#include <algorithm>
#include <limits>

namespace gpucomm {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Lane {
  std::vector<int> steps;
  size_t next = 0;
  double free_s = 0;
};

struct RankState {
  std::vector<Lane> lanes;
  std::vector<double> done_s;                   // per step; kNever until done
  std::vector<double> arrived_s;                // per receive: the last arrival so far
  std::vector<int> waiting;                     // per receive: sources still to come
  std::vector<std::vector<int>> receives_from;  // per peer, in order
  std::vector<size_t> next_from;                // per peer: how many have been matched
  std::vector<bool> sent_to;
};

class Scheduler {
 public:
  Scheduler(const std::vector<Plan>& plans, const std::vector<size_t>& offsets, const Links& links)
      : plans_(plans),
        offsets_(offsets),
        links_(links),
        world_(static_cast<int>(plans.size())),
        ports_(2 * world_, 0.0) {
    for (const Plan& plan : plans_) ranks_.push_back(start(plan));
  }

  Schedule run() {
    while (true) {
      double best = kNever;
      int rank = -1, lane = -1;
      for (int r = 0; r < world_; ++r)
        for (size_t l = 0; l < ranks_[r].lanes.size(); ++l) {
          const double at = earliest(r, ranks_[r].lanes[l]);
          if (at < best) best = at, rank = r, lane = static_cast<int>(l);
        }
      if (rank < 0) break;
      commit(rank, ranks_[rank].lanes[lane], best);
    }
    for (const RankState& state : ranks_)
      for (const Lane& lane : state.lanes)
        if (lane.next < lane.steps.size()) fail(ErrorKind::mismatch, "the plans never finish: verify them");
    return std::move(result_);
  }

 private:
  static bool receives(const Step& s) { return s.kind == StepKind::recv || s.kind == StepKind::recv_reduce; }

  RankState start(const Plan& plan) const {
    RankState state;
    int lanes = 0;
    for (const Step& step : plan.steps) lanes = std::max(lanes, step.lane + 1);
    state.lanes.resize(lanes);
    state.done_s.assign(plan.steps.size(), kNever);
    state.arrived_s.assign(plan.steps.size(), 0.0);
    state.waiting.assign(plan.steps.size(), 0);
    state.receives_from.resize(world_);
    state.next_from.assign(world_, 0);
    state.sent_to.assign(world_, false);
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const Step& step = plan.steps[i];
      state.lanes[step.lane].steps.push_back(static_cast<int>(i));
      if (!receives(step)) continue;
      state.waiting[i] = static_cast<int>(step.peers.size());
      for (int peer : step.peers) state.receives_from[peer].push_back(static_cast<int>(i));
    }
    return state;
  }

  size_t bytes(const Step& step) const { return offsets_[step.piece + step.pieces] - offsets_[step.piece]; }

  // When the step at a lane's head may begin, its resources aside; kNever while something it needs is not
  // done.
  double ready(int rank, const Lane& lane) const {
    double at = lane.free_s;
    for (int before : plans_[rank].steps[lane.steps[lane.next]].after)
      at = std::max(at, ranks_[rank].done_s[before]);
    return at;
  }

  double earliest(int rank, const Lane& lane) const {
    if (lane.next >= lane.steps.size()) return kNever;
    const Step& step = plans_[rank].steps[lane.steps[lane.next]];
    if (receives(step)) return kNever;  // moved by its senders
    const double at = ready(rank, lane);
    return step.kind == StepKind::send && at < kNever ? earliest_message(rank, step, at) : at;
  }

  double earliest_message(int rank, const Step& step, double at) const {
    const int peer = step.peers[0];
    const RankState& other = ranks_[peer];
    const size_t k = other.next_from[rank];
    if (k >= other.receives_from[rank].size()) return kNever;
    const int receive = other.receives_from[rank][k];
    const Lane& lane = other.lanes[plans_[peer].steps[receive].lane];
    if (lane.next >= lane.steps.size() || lane.steps[lane.next] != receive) return kNever;
    const double posted = ready(peer, lane);
    if (posted == kNever) return kNever;
    at = std::max(at, posted - links_.lambda);
    if (links_.kind == Links::Kind::switched)
      return std::max({at, ports_[2 * rank], ports_[2 * peer + 1] - links_.lambda});
    for (int i : route(rank, peer)) at = std::max(at, ports_[i]);
    return at;
  }

  // The links between two ranks of a chain, in the direction of travel.
  static std::vector<int> route(int from, int to) {
    std::vector<int> links;
    for (int i = std::min(from, to); i < std::max(from, to); ++i) links.push_back(2 * i + (from > to));
    return links;
  }

  void commit(int rank, Lane& lane, double at) {
    const int index = lane.steps[lane.next];
    const Step& step = plans_[rank].steps[index];
    if (step.kind == StepKind::send) return move(rank, lane, index, at);
    finish(rank, lane, index, at, at + bytes(step) * links_.gamma);
  }

  void finish(int rank, Lane& lane, int index, double start, double end) {
    ++lane.next;
    lane.free_s = end;
    ranks_[rank].done_s[index] = end;
    result_.total_s = std::max(result_.total_s, end);
    const Step& step = plans_[rank].steps[index];
    const int peer = step.kind == StepKind::send ? step.peers[0] : -1;
    if (bytes(step) || peer >= 0) result_.events.push_back({rank, index, peer, start, end});
  }

  void move(int rank, Lane& lane, int index, double at) {
    const Step& step = plans_[rank].steps[index];
    const int peer = step.peers[0];
    RankState& other = ranks_[peer];
    const bool travels = bytes(step) || !ranks_[rank].sent_to[peer];
    ranks_[rank].sent_to[peer] = true;
    const double left = travels ? at + links_.alpha + bytes(step) * links_.beta : at;
    const double there = travels ? left + links_.lambda : at;
    if (travels && links_.kind == Links::Kind::switched)
      ports_[2 * rank] = left, ports_[2 * peer + 1] = there;
    if (travels && links_.kind == Links::Kind::chain)
      for (int i : route(rank, peer)) ports_[i] = left;
    finish(rank, lane, index, at, left);
    const int receive = other.receives_from[rank][other.next_from[rank]++];
    other.arrived_s[receive] = std::max(other.arrived_s[receive], there);
    if (--other.waiting[receive]) return;
    const Step& into = plans_[peer].steps[receive];
    const double folding =
        into.kind == StepKind::recv_reduce ? bytes(into) * into.peers.size() * links_.gamma : 0;
    finish(peer, other.lanes[into.lane], receive, other.arrived_s[receive],
           other.arrived_s[receive] + folding);
  }

  const std::vector<Plan>& plans_;
  const std::vector<size_t>& offsets_;
  const Links& links_;
  int world_;
  std::vector<double>
      ports_;  // switch: out and in of each rank; chain: up and down link of each neighbour pair
  std::vector<RankState> ranks_;
  Schedule result_;
};

}  // namespace

Schedule schedule(const std::vector<Plan>& plans, const std::vector<size_t>& offset_bytes,
                  const Links& links) {
  return Scheduler(plans, offset_bytes, links).run();
}

}  // namespace gpucomm
