// The model's choice corrected by measured times. The first calls of a kind try the candidates, in bursts of
// a few calls each; then the ranks agree on the largest time of each, the slower half drops out, and so on
// until one is left. After a long rest the first three and one of the others meet again, for conditions
// change and what disturbed a time passes; in between a Watch looks at the two ways of private arrays.
// Everything is decided by the count of calls and by agreed times: all ranks decide alike.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/choose.h"
#include "engine/watch.h"

namespace gpucomm {

class Tuning {
 public:
  // The `candidates` of a kind, the model's choice first. `both_ways`: when few are left, each is tried with
  // private arrays staged, and attached to, in place of the rule of thumb: what is quicker depends on the
  // processor, the kernel and the arrays. Times of what codes count `coded_counts` times.
  Tuning(std::vector<Choice> candidates, bool both_ways, size_t most_bytes, double coded_counts);

  struct Turn {
    int place = 0;       // in the order of candidates as it is when the call starts
    int settles = 0;     // so many candidates' times are agreed on before this call
    uint32_t round = 0;  // above 0: the call is timed, and belongs to this round
  };
  // At the issue of a call, which may be long before its start.
  Turn issue();
  // Whether the next call tries nothing, but takes the first candidate.
  bool rests() const { return single() || resting_ > 1; }

  // From here on in the order of the calls' starts.
  const Choice& at(int place) const { return trials_[place].choice; }
  void record(const Turn& turn, double seconds, size_t bytes);
  // This rank's times of the first `settles` candidates, to be agreed on.
  std::vector<double> times(int settles) const;
  // Orders these candidates by the agreed times.
  void settle(std::vector<double> agreed);
  // Changes when the order does.
  uint64_t version() const { return version_; }

  using Agreements = std::vector<std::vector<double>>;
  // The candidates as they were at first, and the times agreed on since (of very long runs the first ones):
  // what replay() needs.
  const std::vector<Choice>& candidates() const { return candidates_; }
  bool both_ways() const { return both_ways_; }
  double coded_counts() const { return coded_counts_; }
  const Agreements& agreements() const { return agreements_; }
  // Decides by these instead of by what is measured, as long as there are any.
  void replay(const Agreements& agreements) { replayed_.assign(agreements.begin(), agreements.end()); }

 private:
  struct Trial {
    Choice choice;
    uint32_t round = 0;         // of the samples
    std::vector<double> means;  // of whole bursts
    double sum = 0;             // of the burst under way, and how many of its calls
    int calls = 0;
  };
  bool single() const { return candidates_.size() == 1 && !both_ways_; }
  int shuffled(int burst) const;
  void part_ways(int left);
  Turn watched();
  void settle_watched(double agreed);

  std::vector<Choice> candidates_;
  size_t most_bytes_;
  double coded_counts_;
  bool both_ways_;
  int burst_, bursts_, watch_;
  // As calls are issued.
  int rivals_, issued_ = 0;
  bool by_rule_;  // the ways have not parted yet
  uint32_t round_ = 1;
  int64_t resting_ = 0, spent_ = 0;
  // As they start.
  std::vector<Trial> trials_;
  Watch watching_;
  uint64_t version_ = 0;
  Agreements agreements_;
  std::deque<std::vector<double>> replayed_;
};

}  // namespace gpucomm
