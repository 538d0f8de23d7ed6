// The steps of all ranks' plans, flat and small: a world of thousands of ranks fits into memory.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

// A step as the scheduler sees it. Those of a lane lie one behind the other.
struct Action {
  double time_s = 0;  // when it was done; of a receive under way the last arrival so far
  size_t bytes = 0;
  int step = 0, lane = 0;
  int match = -1;   // of a send: the receive that it meets
  int sources = 0;  // of a receive
  int missing = 0;  // of a receive: sources still to come
  int first_after = 0;
  int parked = -1;  // the first lane that waits for this action
  StepKind kind = StepKind::copy;
  bool done = false;
  bool opens = false;  // of a send: the first to its peer, which travels even if it is empty
};

struct Lane {
  int rank, next, end;  // the action at its head; where the next lane's begin
  int parked = -1;      // the next lane that waits for the same action
  double free_s = 0;
  int port = 0;        // of a message under way: to which port on its way it comes next
  double began_s = 0;  // ... and when it began to pass the first one
};

// Takes plans rank by rank; a plan is not needed afterwards. Lanes are numbered by rank, then lane. The k-th
// message of a directed pair is the k-th receive, as the verifier demands.
class Actions {
 public:
  // `coded`: bytes of a coded message for a byte of its piece.
  void add(const Plan& plan, const std::vector<size_t>& offset_bytes, double coded = 1);

  std::vector<Lane>& lanes() { return lanes_; }
  Action& operator[](int index) { return actions_[index]; }
  const Action& operator[](int index) const { return actions_[index]; }
  // What must be done before.
  std::span<const int> after(int index) const {
    const size_t begin = actions_[index].first_after, next = static_cast<size_t>(index) + 1;
    const size_t end = next < actions_.size() ? actions_[next].first_after : after_.size();
    return {after_.data() + begin, end - begin};
  }

 private:
  struct Pair {              // a directed pair of ranks
    std::vector<int> unmet;  // sends or receives whose other end has not been added yet
    size_t first = 0;        // of them
    bool sends = false;      // which of the two they are
    bool opened = false;
  };
  std::vector<int> place(const Plan& plan);
  void meet(int from, int to, int index, bool sends);

  std::vector<Action> actions_;
  std::vector<Lane> lanes_;
  std::vector<int> after_;
  std::unordered_map<uint64_t, Pair> pairs_;
};

}  // namespace gpucomm
