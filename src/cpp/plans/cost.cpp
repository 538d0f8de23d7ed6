#include "plans/cost.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "plans/actions.h"
#include "plans/ways.h"

namespace gpucomm {
namespace {

constexpr size_t kAlignBytes = 64;  // cuts fall on cache lines, as in a communicator

// Of all lanes whose head could go on, to a step or to the next port on a message's way, the one that can go
// first goes next: so messages come to every port in the order of time. A lane whose head waits for an action
// of its own rank is parked there until that is done. Messages do not wait for their receives: receivers have
// room for them.
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
      const auto [at, rank, lane] = turns_.top();
      turns_.pop();
      commit(lane, at);
    }
    for (const Lane& lane : lanes_)
      if (lane.next < lane.end) fail(ErrorKind::mismatch, "the plans never finish: verify them");
    return std::move(result_);
  }

 private:
  // When a lane can go, its rank, and the lane: so ties go to the lower one.
  using Turn = std::tuple<double, int, int>;

  // An action that must be done before this one; -1: none.
  int blocker(int index) const {
    for (const int before : actions_.after(index))
      if (!actions_[before].done) return before;
    return -1;
  }

  void look(int l) {
    Lane& lane = lanes_[l];
    while (lane.next < lane.end) {
      if (const int before = blocker(lane.next); before >= 0) return park(l, before);
      const Action& head = actions_[lane.next];
      if (head.kind == StepKind::send && head.match < 0) return;
      if (!receives(head.kind)) return turn(l, ready(lane));
      if (head.missing) return;  // its last message will look again
      receive(lane);
    }
  }

  void turn(int l, double at) { turns_.push({at, lanes_[l].rank, l}); }

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

  // When all that comes before the head of a lane is done.
  double ready(const Lane& lane) const {
    double at = lane.free_s;
    for (const int before : actions_.after(lane.next)) at = std::max(at, actions_[before].time_s);
    return at;
  }

  void commit(int lane, double at) {
    const int index = lanes_[lane].next;
    const Action& action = actions_[index];
    if (action.kind == StepKind::send) return pass(lane, at);
    finish(index, -1, at, at + action.bytes * local_cost(action.kind));
    release(index);
  }

  double local_cost(StepKind kind) const {
    if (kind == StepKind::encode) return coding_.encode;
    if (kind == StepKind::decode) return coding_.decode;
    return kind == StepKind::decode_reduce ? coding_.decode + gamma_ : gamma_;
  }

  // The message at the head of a lane comes to the next port on its way.
  void pass(int l, double at) {
    Lane& lane = lanes_[l];
    const Action& action = actions_[lane.next];
    const int to = lanes_[actions_[action.match].lane].rank;
    if (!action.bytes && !action.opens) return arrive(lane.next, to, at, at, at);
    const Way way = ways_.between(lane.rank, to);
    const double length = way.alpha + action.bytes * way.beta;
    const double begin = ways_.pass(way, lane.port, at, length);
    if (!lane.port) lane.began_s = begin;
    if (++lane.port < way.count) return turn(l, begin);
    lane.port = 0;
    arrive(lane.next, to, lane.began_s, begin + length, begin + length + way.lambda);
  }

  void arrive(int send, int to, double began, double left, double there) {
    const int match = actions_[send].match;
    Action& into = actions_[match];
    finish(send, to, began, left);
    into.time_s = std::max(into.time_s, there);
    --into.missing;
    release(send);
    // A head that something else holds up is looked at once that is done.
    if (lanes_[into.lane].next == match && blocker(match) < 0) look(into.lane);
  }

  // All of it is there.
  void receive(const Lane& lane) {
    const int index = lane.next;
    const Action& into = actions_[index];
    const double at = std::max(into.time_s, ready(lane));
    const double folding = into.kind == StepKind::recv_reduce ? into.bytes * into.sources * gamma_ : 0;
    finish(index, -1, at, at + folding);
    wake(index);
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
  Schedule found = scheduler.run();
  auto place = [](const Timed& event) { return std::tuple(event.end_s, event.rank, event.step); };
  std::sort(found.events.begin(), found.events.end(),
            [&](const Timed& a, const Timed& b) { return place(a) < place(b); });
  return found;
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
