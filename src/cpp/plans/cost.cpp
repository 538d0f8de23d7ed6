#include "plans/cost.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "plans/actions.h"
#include "plans/ways.h"

namespace gpucomm {
namespace {

constexpr size_t kAlignBytes = 64;  // cuts fall on cache lines, as in a communicator

// Of all lanes whose head could begin, the one that can begin first goes next. A time, once known, only grows
// while others take ports, so it is looked at again when its turn comes. A lane whose head waits for an
// action of its own rank, or for its receive to be posted, is parked there until that happens.
class Scheduler {
 public:
  Scheduler(const Links& links, const Coding& coding, int world, bool events)
      : gamma_(links.gamma), coding_(coding), ways_(links, world), events_(events) {}

  void add(const Plan& plan, const std::vector<size_t>& offset_bytes) {
    actions_.add(plan, offset_bytes, coding_.ratio);
  }

  Schedule run() {
    for (size_t l = 0; l < lanes_.size(); ++l) look(static_cast<int>(l));
    while (!turns_.empty()) {
      const auto [at, rank, since, lane] = turns_.top();
      turns_.pop();
      if (earliest(lane) > at)
        look(lane);
      else
        commit(lane, at);
    }
    for (const Lane& lane : lanes_)
      if (lane.next < lane.end) fail(ErrorKind::mismatch, "the plans never finish: verify them");
    return std::move(result_);
  }

 private:
  // When a lane could go, its rank, since when it waits, and the lane: ties go to the lower rank, and there
  // to the message that waits for longest.
  using Turn = std::tuple<double, int, double, int>;

  // An action that must be done before this one; -1: none.
  int blocker(int index) const {
    for (const int before : actions_.after(index))
      if (!actions_[before].done) return before;
    return -1;
  }

  bool posted(int receive) const {
    return lanes_[actions_[receive].lane].next == receive && blocker(receive) < 0;
  }

  void look(int l) {
    const Lane& lane = lanes_[l];
    if (lane.next == lane.end) return;
    const Action& head = actions_[lane.next];
    if (const int before = blocker(lane.next); before >= 0) return park(l, before);
    if (receives(head.kind)) return wake(lane.next);  // it is posted: moved by its senders
    if (head.kind == StepKind::send) {
      if (head.match < 0) return;
      if (!posted(head.match)) return park(l, head.match);
    }
    turns_.push({earliest(l), lane.rank, since(l), l});
  }

  void park(int lane, int index) {
    lanes_[lane].parked = actions_[index].parked;
    actions_[index].parked = lane;
  }

  void wake(int index) {
    int lane = std::exchange(actions_[index].parked, -1);
    while (lane >= 0) {
      const int next = lanes_[lane].parked;
      look(lane);
      lane = next;
    }
  }

  // When all that comes before the head of a lane is done, its resources aside.
  double ready(const Lane& lane) const {
    double at = lane.free_s;
    for (const int before : actions_.after(lane.next)) at = std::max(at, actions_[before].time_s);
    return at;
  }

  // The same, and of a message also when its receive is posted, the latency before.
  double since(int l) const {
    const Lane& lane = lanes_[l];
    const Action& head = actions_[lane.next];
    if (head.kind != StepKind::send) return ready(lane);
    const Lane& other = lanes_[actions_[head.match].lane];
    return std::max(ready(lane), ready(other) - ways_.between(lane.rank, other.rank).lambda);
  }

  double earliest(int l) const {
    const Lane& lane = lanes_[l];
    const Action& head = actions_[lane.next];
    if (head.kind != StepKind::send) return ready(lane);
    return ways_.free(ways_.between(lane.rank, lanes_[actions_[head.match].lane].rank), since(l));
  }

  void commit(int lane, double at) {
    const int index = lanes_[lane].next;
    const Action& action = actions_[index];
    if (action.kind == StepKind::send) return move(index, at);
    finish(index, -1, at, at + action.bytes * local_cost(action.kind));
    release(index);
  }

  double local_cost(StepKind kind) const {
    if (kind == StepKind::encode) return coding_.encode;
    if (kind == StepKind::decode) return coding_.decode;
    return kind == StepKind::decode_reduce ? coding_.decode + gamma_ : gamma_;
  }

  void move(int send, double at) {
    const Action& action = actions_[send];
    Action& into = actions_[action.match];
    const int from = lanes_[action.lane].rank, to = lanes_[into.lane].rank;
    const bool travels = action.bytes || action.opens;
    const Way way = ways_.between(from, to);
    const double left = travels ? at + way.alpha + action.bytes * way.beta : at;
    const double there = travels ? left + way.lambda : at;
    if (travels) ways_.take(way, left);
    finish(send, to, at, left);
    into.time_s = std::max(into.time_s, there);
    const bool whole = !--into.missing;
    if (whole) {
      const double folding = into.kind == StepKind::recv_reduce ? into.bytes * into.sources * gamma_ : 0;
      finish(action.match, -1, into.time_s, into.time_s + folding);
    }
    release(send);
    if (whole) release(action.match);
  }

  void finish(int index, int peer, double start, double end) {
    Action& action = actions_[index];
    Lane& lane = lanes_[action.lane];
    ++lane.next;
    lane.free_s = end;
    action.time_s = end, action.done = true;
    result_.total_s = std::max(result_.total_s, end);
    if (events_ && (action.bytes || peer >= 0))
      result_.events.push_back({lane.rank, action.step, peer, start, end});
  }

  // Looks again at what this action, now done, held up.
  void release(int index) {
    wake(index);
    look(actions_[index].lane);
  }

  double gamma_;
  Coding coding_;
  Ways ways_;
  bool events_;
  Actions actions_;
  std::vector<Lane>& lanes_ = actions_.lanes();
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
  Schedule result_;
};

}  // namespace

Schedule schedule(const std::vector<Plan>& plans, const std::vector<size_t>& offset_bytes, const Links& links,
                  const Coding& coding) {
  Scheduler scheduler(links, coding, static_cast<int>(plans.size()), true);
  for (const Plan& plan : plans) scheduler.add(plan, offset_bytes);
  return scheduler.run();
}

double total_time(std::string_view algorithm, PlanRequest request, size_t bytes, const Links& links,
                  const Coding& coding) {
  if (request.nodes.empty()) request.nodes = links.nodes;
  Scheduler scheduler(links, coding, request.world, false);
  std::vector<size_t> offset_bytes;
  const size_t whole = by_rank(request.collective) ? bytes / request.world * request.world : bytes;
  for (request.rank = 0; request.rank < request.world; ++request.rank) {
    const Plan plan = build_plan(algorithm, request);
    if (!request.rank) offset_bytes = cut(plan, whole, kAlignBytes).offset;
    scheduler.add(plan, offset_bytes);
  }
  return scheduler.run().total_s;
}

}  // namespace gpucomm
