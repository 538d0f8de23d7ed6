// The binomial tree of gather and scatter. Chunks lie in rank order, so a tree in rotated ranks would break a
// subtree's chunks in two where the ranks wrap round. This tree halves ranges of ranks instead: every subtree
// is a range, hence one run of chunks and one message, whatever the root. From root 0 it is the binomial
// tree. With one segment a subtree travels as one message, held in scratch on its way; with more it travels
// piece by piece through four slots, so that scratch stays small however long the message is.
#include "plans/range_tree.h"

#include <algorithm>
#include <bit>

namespace gpucomm {
namespace {

enum Lane { kReceive, kSend, kLocal };
constexpr int kSlots = 4;

// A subtree: the ranks [first, first + ranks), what is between them and the rank at the other end.
struct Branch {
  int first = 0, ranks = 0, peer = -1, level = 0;
};

class RangeTree {
 public:
  RangeTree(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        rank_(request.rank),
        own_{request.in_place ? Space::output : Space::input},
        depth_(std::bit_width(static_cast<unsigned>(request.world - 1))) {
    descend(request.world, request.root);
  }

  void gather() {
    std::reverse(children_.begin(), children_.end());  // the smallest come first: they are there first
    if (!parent_.ranks) {
      for (const Branch& child : children_) root_receives(child);
      copy_own(own_, {Space::output});
    } else {
      plan_.segments == 1 ? gather_whole() : gather_by_piece();
    }
  }

  void scatter() {
    if (!parent_.ranks) {
      for (const Branch& child : children_) root_sends(child);
      copy_own(own_, {Space::output});
    } else {
      plan_.segments == 1 ? scatter_whole() : scatter_by_piece();
    }
  }

 private:
  struct Run {
    int piece, pieces;
  };

  // From the whole world to this rank. A range falls into two: its leader's, and one with a leader of its
  // own.
  void descend(int world, int leader) {
    int low = 0, high = world;
    for (int level = 0; high - low > 1; ++level) {
      const int middle = low + static_cast<int>(std::bit_floor(static_cast<unsigned>(high - low - 1)));
      const Branch branch = leader < middle ? Branch{middle, high - middle, leader, level}
                                            : Branch{low, middle - low, leader, level};
      const bool inside = rank_ >= branch.first && rank_ < branch.first + branch.ranks;
      if (rank_ == leader) children_.push_back({branch.first, branch.ranks, branch.first, level});
      if (rank_ == branch.first) parent_ = branch;
      if (inside) leader = branch.first;
      const bool upper = inside == (branch.first == middle);
      upper ? low = middle : high = middle;
    }
  }

  Run pieces_of(const Branch& branch) const {
    return {branch.first * plan_.segments, branch.ranks * plan_.segments};
  }

  // How a subtree travels: in one run, or piece by piece.
  std::vector<Run> messages(const Branch& branch) const {
    const Run all = pieces_of(branch);
    if (plan_.segments == 1) return {all};
    std::vector<Run> runs;
    for (int i = 0; i < all.pieces; ++i) runs.push_back({all.piece + i, 1});
    return runs;
  }

  void root_receives(const Branch& child) {
    int index = 0;
    for (const Run& run : messages(child)) receive(run, {Space::output}, child, index++);
  }
  void root_sends(const Branch& child) {
    int index = 0;
    for (const Run& run : messages(child)) send(run, own_, child, index++);
  }

  void gather_whole() {
    if (children_.empty()) return void(send(pieces_of(parent_), own_, parent_, 0));
    plan_.scratch_slots = 1;
    const Place held{Space::scratch, 0, parent_.first};
    std::vector<int> before = {copy(pieces_of({rank_, 1}), own_, held)};
    for (const Branch& child : children_) before.push_back(receive(pieces_of(child), held, child, 0));
    plan_.steps[send(pieces_of(parent_), held, parent_, 0)].after = before;
  }

  void scatter_whole() {
    if (children_.empty()) return void(receive(pieces_of(parent_), {Space::output}, parent_, 0));
    plan_.scratch_slots = 1;
    const Place held{Space::scratch, 0, parent_.first};
    const int received = receive(pieces_of(parent_), held, parent_, 0);
    for (const Branch& child : children_)
      plan_.steps[send(pieces_of(child), held, child, 0)].after = {received};
    plan_.steps[copy(pieces_of({rank_, 1}), held, {Space::output})].after = {received};
  }

  void gather_by_piece() {
    plan_.scratch_slots = children_.empty() ? 0 : kSlots;
    int index = 0;
    for (int k = 0; k < plan_.segments; ++k) send({plan_.piece(rank_, k), 1}, own_, parent_, index++);
    for (const Branch& child : children_) forward(child, child, parent_, index);
  }

  void scatter_by_piece() {
    plan_.scratch_slots = children_.empty() ? 0 : kSlots;
    int index = 0;
    for (int k = 0; k < plan_.segments; ++k)
      receive({plan_.piece(rank_, k), 1}, {Space::output}, parent_, index++);
    std::reverse(children_.begin(), children_.end());  // as they lie in the parent's run
    for (const Branch& child : children_) forward(child, parent_, child, index);
  }

  // A child's pieces pass through; `up` counts the messages with the parent.
  void forward(const Branch& child, const Branch& from, const Branch& to, int& up) {
    int down = 0;
    for (const Run& run : messages(child)) {
      const bool gathering = from.peer == child.peer;
      const int slot = up % kSlots;
      const int received = receive(run, {Space::scratch, slot}, from, gathering ? down : up);
      if (read_[slot] >= 0) plan_.steps[received].after = {read_[slot]};
      read_[slot] = send(run, {Space::scratch, slot}, to, gathering ? up : down);
      plan_.steps[read_[slot]].after = {received};
      ++up, ++down;
    }
  }

  int round(const Branch& branch, int index) const {
    return (plan_.collective == Collective::gather ? depth_ - 1 - branch.level : branch.level) + index;
  }
  int send(const Run& run, Place from, const Branch& to, int index) {
    return plan_.add({.kind = StepKind::send,
                      .piece = run.piece,
                      .pieces = run.pieces,
                      .source = from,
                      .peers = {to.peer},
                      .lane = kSend,
                      .round = round(to, index)});
  }
  int receive(const Run& run, Place to, const Branch& from, int index) {
    return plan_.add({.kind = StepKind::recv,
                      .piece = run.piece,
                      .pieces = run.pieces,
                      .target = to,
                      .peers = {from.peer},
                      .lane = kReceive,
                      .round = round(from, index)});
  }
  int copy(const Run& run, Place from, Place to) {
    return plan_.add({.kind = StepKind::copy,
                      .piece = run.piece,
                      .pieces = run.pieces,
                      .source = from,
                      .target = to,
                      .lane = kLocal});
  }
  void copy_own(Place from, Place to) {
    if (!plan_.in_place) copy(pieces_of({rank_, 1}), from, to);
  }

  Plan& plan_;
  int rank_;
  Place own_;
  int depth_;
  Branch parent_;                        // no ranks: this is the root
  std::vector<Branch> children_;         // the largest first
  int read_[kSlots] = {-1, -1, -1, -1};  // the send that last read a slot
};

}  // namespace

void build_range_tree(const PlanRequest& request, Plan& plan) {
  plan.chunks = request.world;
  RangeTree tree(request, plan);
  request.collective == Collective::gather ? tree.gather() : tree.scatter();
}

}  // namespace gpucomm
