#include "plans/verify.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "plans/meetings.h"
#include "plans/plan_fault.h"

namespace gpucomm {
namespace {

using Clock = std::vector<int>;  // per lane of every rank: how many of its steps happened before

struct Value {
  std::vector<int> times;   // per rank: how often its contribution is in here; empty: nothing here yet
  std::vector<int> passes;  // per rank: lossy passes on that contribution's way
  int errors = 0;           // encodings whose errors add up in here
  int piece = 0;            // of the contributions, where they began
  bool coded = false, final = false;
};

struct Cell {
  Value value;
  int writer = -1, written_at = 0;         // the thread of the last write and its clock then
  std::vector<std::pair<int, int>> reads;  // (thread, clock) since
};

struct Lane {
  std::vector<int> steps;
  size_t next = 0;
  Clock clock;
};

class Machine {
 public:
  explicit Machine(const std::vector<Plan>& plans)
      : plans_(plans), world_(static_cast<int>(plans.size())), meetings_(meet(plans)) {
    int threads = 0;
    for (const Plan& plan : plans_) {
      int lanes = 0;
      for (const Step& step : plan.steps) lanes = std::max(lanes, step.lane + 1);
      first_thread_.push_back(threads);
      threads += lanes;
      lanes_.emplace_back(lanes);
      done_.emplace_back(plan.steps.size(), Clock());
    }
    for (int r = 0; r < world_; ++r) {
      for (auto& lane : lanes_[r]) lane.clock.assign(threads, 0);
      for (size_t i = 0; i < plans_[r].steps.size(); ++i)
        lanes_[r][plans_[r].steps[i].lane].steps.push_back(i);
    }
    report_.messages = meetings_.messages, report_.rounds = meetings_.rounds, report_.sent = meetings_.sent;
    fill_inputs();
  }

  Verified run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < world_; ++r)
        for (size_t l = 0; l < lanes_[r].size(); ++l)
          while (runnable(r, l)) execute(r, l), moved = true;
    }
    check_finished();
    check_results();
    for (const Plan& plan : plans_)
      report_.scratch_slots = std::max(report_.scratch_slots, plan.scratch_slots);
    return report_;
  }

 private:
  void fill_inputs() {
    for (int r = 0; r < world_; ++r)
      for (int piece = 0; piece < plans_[r].pieces(); ++piece) {
        const Plan& plan = plans_[r];
        const bool from_root =
            plan.collective == Collective::broadcast || plan.collective == Collective::scatter;
        if (from_root && r != plan.root) continue;
        if (gathers(plan.collective) && plan.chunk_of(piece) != r) continue;
        Value value{std::vector<int>(world_), std::vector<int>(world_), 0, piece};
        value.times[r] = 1;
        cell(r, {Space::input}, piece).value = value;
      }
  }

  Cell& cell(int rank, Place place, int piece) {
    Space space = place.space;
    if (space == Space::input && plans_[rank].in_place) space = Space::output;
    const bool slotted = space == Space::scratch || space == Space::coded;
    return cells_[{rank, static_cast<int>(space), slotted ? place.slot : 0,
                   piece - (slotted ? place.base : 0)}];
  }

  bool at_head(int rank, int step) const {
    const Lane& lane = lanes_[rank][plans_[rank].steps[step].lane];
    if (lane.next >= lane.steps.size() || lane.steps[lane.next] != step) return false;
    for (int before : plans_[rank].steps[step].after)
      if (done_[rank][before].empty()) return false;
    return true;
  }

  // A send runs with the receive that it meets, which runs when all of its sources are there: no buffering.
  bool runnable(int rank, size_t l) const {
    const Lane& lane = lanes_[rank][l];
    if (lane.next >= lane.steps.size()) return false;
    const int index = lane.steps[lane.next];
    const Step& step = plans_[rank].steps[index];
    if (step.kind == StepKind::send || !at_head(rank, index)) return false;
    if (!receives(step.kind)) return true;
    return std::all_of(step.peers.begin(), step.peers.end(),
                       [&](int peer) { return at_head(peer, meetings_.sender.at({rank, index, peer})); });
  }

  static void join(Clock& clock, const Clock& other) {
    for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
  }

  Clock& enter(int rank, int index) {
    const Step& step = plans_[rank].steps[index];
    Lane& lane = lanes_[rank][step.lane];
    for (int before : step.after) join(lane.clock, done_[rank][before]);
    ++lane.clock[first_thread_[rank] + step.lane];
    return lane.clock;
  }

  void leave(int rank, int index) {
    Lane& lane = lanes_[rank][plans_[rank].steps[index].lane];
    done_[rank][index] = lane.clock;
    ++lane.next;
  }

  void execute(int rank, size_t l) {
    const int index = lanes_[rank][l].steps[lanes_[rank][l].next];
    const Step& step = plans_[rank].steps[index];
    std::map<int, std::vector<Value>> arriving;
    Clock& clock = enter(rank, index);
    if (receives(step.kind))
      for (int peer : step.peers) {
        const int sender = meetings_.sender.at({rank, index, peer});
        const Step& from = plans_[peer].steps[sender];
        Clock& sent = enter(peer, sender);
        for (int i = 0; i < step.pieces; ++i)
          arriving[peer].push_back(read(peer, sender, from.source, i, sent));
        join(clock, sent);
        leave(peer, sender);
      }
    for (int i = 0; i < step.pieces; ++i) {
      Value value = compute(rank, index, i, arriving, clock);
      write(rank, index, i, std::move(value), clock);
    }
    leave(rank, index);
  }

  Value compute(int rank, int index, int i, std::map<int, std::vector<Value>>& arriving, const Clock& clock) {
    const Step& step = plans_[rank].steps[index];
    if (step.kind == StepKind::recv) return arriving.begin()->second[i];
    Value value = read(rank, index, step.source, i, clock);
    for (auto& [peer, values] : arriving) add(rank, index, value, values[i]);
    if (step.kind == StepKind::encode) {
      for (size_t r = 0; r < value.times.size(); ++r) value.passes[r] += value.times[r] > 0;
      ++value.errors, value.coded = true;
      report_.repeats = std::max(report_.repeats, ++encodes_[{rank, step.piece + i}]);
    }
    if (step.kind == StepKind::decode || step.kind == StepKind::decode_reduce) value.coded = false;
    if (step.kind == StepKind::reduce || step.kind == StepKind::decode_reduce)
      add(rank, index, value, read(rank, index, step.target, i, clock));
    value.final = value.final || step.final;
    return value;
  }

  void add(int rank, int index, Value& value, const Value& more) {
    if (value.final || more.final) plan_fault(plans_[rank], index, "folds a result that was already final");
    if (value.coded != more.coded) plan_fault(plans_[rank], index, "folds coded with dense data");
    if (value.piece != more.piece)
      plan_fault(plans_[rank], index, "folds piece ", value.piece, " with piece ", more.piece);
    value.errors += more.errors;
    for (int r = 0; r < world_; ++r) {
      value.times[r] += more.times[r];
      value.passes[r] = std::max(value.passes[r], more.passes[r]);
    }
  }

  static Place based(Place place, const Step& step) {
    if (place.base < 0) place.base = step.piece;
    return place;
  }

  Value read(int rank, int index, const Place& place, int i, const Clock& clock) {
    const Step& step = plans_[rank].steps[index];
    Cell& c = cell(rank, based(place, step), step.piece + i);
    if (c.value.times.empty())
      plan_fault(plans_[rank], index, "reads piece ", step.piece + i, " of ", name_of(place.space),
                 ", where nothing is yet");
    if (c.value.coded != coded(place))
      plan_fault(plans_[rank], index, "takes coded data for dense or dense for coded");
    if (c.writer >= 0 && clock[c.writer] < c.written_at)
      plan_fault(plans_[rank], index, "reads piece ", step.piece + i,
                 " unordered with the step that writes it");
    const int thread = first_thread_[rank] + step.lane;
    c.reads.emplace_back(thread, clock[thread]);
    return c.value;
  }

  void write(int rank, int index, int i, Value value, const Clock& clock) {
    const Step& step = plans_[rank].steps[index];
    Cell& c = cell(rank, based(step.target, step), step.piece + i);
    bool ordered = c.writer < 0 || clock[c.writer] >= c.written_at;
    for (auto& [thread, at] : c.reads) ordered = ordered && clock[thread] >= at;
    if (!ordered)
      plan_fault(plans_[rank], index, "writes piece ", step.piece + i, " unordered with a step that uses it");
    const int thread = first_thread_[rank] + step.lane;
    c.value = std::move(value), c.writer = thread, c.written_at = clock[thread], c.reads.clear();
  }

  // What a rank's output must hold of a piece; no times: nothing is promised there.
  Value expected(int rank, int piece) const {
    const Plan& plan = plans_[rank];
    const Collective c = plan.collective;
    const int chunk = plan.chunk_of(piece);
    Value value;
    if ((c == Collective::reduce || c == Collective::gather) && rank != plan.root) return value;
    if (scatters(c) && chunk != rank) return value;
    value.piece = c == Collective::all_to_all ? plan.piece(rank, plan.segment_of(piece)) : piece;
    value.times.assign(world_, reduces(c) ? 1 : 0);
    value.passes.assign(world_, 0);
    if (c == Collective::broadcast || c == Collective::scatter) value.times[plan.root] = 1;
    if (gathers(c) || c == Collective::all_to_all) value.times[chunk] = 1;
    value.final = reduces(c);
    return value;
  }

  void check_results() {
    for (int r = 0; r < world_; ++r)
      for (int piece = 0; piece < plans_[r].pieces(); ++piece) {
        const Value want = expected(r, piece), &got = cell(r, {Space::output}, piece).value;
        if (want.times.empty()) continue;
        if (got.times != want.times)
          fail(ErrorKind::mismatch, label(plans_[r]), ": piece ", piece,
               " of the result lacks or repeats a contribution");
        if (got.piece != want.piece)
          fail(ErrorKind::mismatch, label(plans_[r]), ": piece ", piece, " of the result is piece ",
               got.piece, " of the input, not ", want.piece);
        if (world_ > 1 && got.final != want.final)
          fail(ErrorKind::mismatch, label(plans_[r]), ": piece ", piece,
               " of the result was never marked final");
        report_.encode_errors = std::max(report_.encode_errors, got.errors);
        for (int p : got.passes) report_.lossy_passes = std::max(report_.lossy_passes, p);
      }
  }

  void check_finished() {
    for (int r = 0; r < world_; ++r)
      for (const Lane& lane : lanes_[r])
        if (lane.next < lane.steps.size())
          plan_fault(plans_[r], lane.steps[lane.next], "never runs: a deadlock");
  }

  const std::vector<Plan>& plans_;
  int world_;
  const Meetings meetings_;
  std::vector<int> first_thread_;
  std::vector<std::vector<Lane>> lanes_;
  std::vector<std::vector<Clock>> done_;
  std::map<std::tuple<int, int, int, int>, Cell> cells_;  // (rank, space, slot, piece)
  std::map<std::pair<int, int>, int> encodes_;            // (rank, piece) -> how often
  Verified report_;
};

}  // namespace

Verified verify(const std::vector<Plan>& plans) { return Machine(plans).run(); }

}  // namespace gpucomm
