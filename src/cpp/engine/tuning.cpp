#include "engine/tuning.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"

namespace gpucomm {
namespace {

// How a candidate is timed in a stage: in so many bursts of so many calls, of which the first is not counted:
// it comes behind another candidate's, and may build a plan and touch new memory. What is short is timed more
// often, for it costs little and varies more. In a rest it is watched once in so many bursts.
struct Timing {
  int burst, bursts, watch;
};
Timing timing_for(double seconds) {
  if (seconds < 1e-4) return {16, 5, 64};
  if (seconds < 1e-3) return {8, 4, 32};
  if (seconds < 1e-2) return {4, 3, 16};
  return seconds < 0.1 ? Timing{2, 3, 16} : Timing{1, 1, 16};
}

// The calls of a round are followed by so many times as many that try nothing.
constexpr int kRest = 64;
constexpr int kRivalsAgain = 4;
// The candidates that are left part into two ways once they are so many or fewer.
constexpr int kPartWays = 4;
// Above this size the time of a message is taken as proportional to its bytes.
constexpr size_t kProportional = 64 << 10;
constexpr size_t kMostLogged = 1 << 16;  // agreements

int halved(size_t candidates) { return static_cast<int>(candidates + 1) / 2; }

// Of an even number the lower middle one: what disturbs a burst makes it longer.
double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + (samples.size() - 1) / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace

Tuning::Tuning(std::vector<Choice> candidates, bool both_ways, size_t most_bytes, double coded_counts)
    : candidates_(std::move(candidates)),
      most_bytes_(most_bytes),
      coded_counts_(coded_counts),
      both_ways_(both_ways),
      by_rule_(both_ways) {
  const Timing timing = timing_for(candidates_[0].cost_s);
  burst_ = timing.burst, bursts_ = timing.bursts, watch_ = timing.burst * timing.watch;
  for (const Choice& choice : candidates_) trials_.push_back({choice});
  rivals_ = static_cast<int>(trials_.size());
  if (by_rule_ && rivals_ <= kPartWays) part_ways(rivals_), by_rule_ = false, rivals_ *= 2;
}

// Those that are left, staged, then attached to. Among them the model's first of the coarsest: where a rule
// of thumb has staged all, that is what nothing was seen of.
void Tuning::part_ways(int left) {
  auto coarser = [](const Choice& a, const Choice& b) { return a.segments < b.segments; };
  const Choice& coarsest = *std::min_element(candidates_.begin(), candidates_.end(), coarser);
  auto is_coarsest = [&](const Trial& trial) { return same_plan(trial.choice, coarsest); };
  const auto found = std::find_if(trials_.begin(), trials_.end(), is_coarsest);
  if (found - trials_.begin() >= left) std::swap(*found, trials_[left - 1]);
  std::vector<Trial> both;
  for (const PrivateWay way : {PrivateWay::staged, PrivateWay::attached})
    for (int i = 0; i < left; ++i) both.push_back({trials_[i].choice}), both.back().choice.way = way;
  trials_.erase(trials_.begin(), trials_.begin() + left);
  trials_.insert(trials_.begin(), both.begin(), both.end());
}

Tuning::Turn Tuning::issue() {
  if (single()) return {};
  if (resting_ > 0 && --resting_ == 0) {
    rivals_ = std::min<int>(candidates_.size() * (both_ways_ ? 2 : 1), kRivalsAgain);
    issued_ = 0, spent_ = 0, ++round_;
    return {};
  }
  if (resting_ > 0) return both_ways_ ? watched() : Turn{};
  Turn turn;
  if (issued_ == rivals_ * burst_ * bursts_) {
    turn.settles = rivals_;
    rivals_ = halved(rivals_), issued_ = 0;
    if (by_rule_ && rivals_ <= kPartWays) by_rule_ = false, rivals_ *= 2;
    if (rivals_ == 1) {
      resting_ = (kRest * spent_ + watch_ - 1) / watch_ * watch_;
      return turn;
    }
  }
  turn.place = shuffled(issued_ / burst_);
  if (issued_ % burst_ || burst_ == 1) turn.round = round_;
  ++issued_, ++spent_;
  return turn;
}

// A call of a rest, which is a multiple of watch_ long.
Tuning::Turn Tuning::watched() {
  const int64_t call = watch_ - 1 - resting_ % watch_, ended = Watch::kBursts * burst_;
  Turn turn;
  if (call > ended) return turn;
  if (call && call % burst_ == 0) turn.settles = 1;
  if (call == ended) return turn;
  if (call % burst_ == 0) ++round_;
  if (call % burst_ || burst_ == 1) turn.round = round_;
  return turn;
}

// Every candidate once before the next burst of any, each time in another order.
int Tuning::shuffled(int burst) const {
  std::vector<int> places(rivals_);
  std::iota(places.begin(), places.end(), 0);
  auto rank = [&](int place) { return mix(mix(round_, burst / rivals_), place); };
  std::sort(places.begin(), places.end(), [&](int a, int b) { return rank(a) < rank(b); });
  return places[burst % rivals_];
}

// A burst's mean counts, not each call: ranks run ahead of each other and wait for each other, so a rank's
// times of single calls say little where it has a core for itself only now and then.
void Tuning::record(const Turn& turn, double seconds, size_t bytes) {
  Trial& trial = trials_[turn.place];
  if (trial.round != turn.round) trial.means.clear(), trial.round = turn.round;
  const bool proportional = bytes >= kProportional;
  trial.sum +=
      proportional ? seconds * static_cast<double>(most_bytes_) / static_cast<double>(bytes) : seconds;
  if (++trial.calls < std::max(1, burst_ - 1)) return;
  trial.means.push_back(trial.sum / trial.calls);
  trial.sum = 0, trial.calls = 0;
}

std::vector<double> Tuning::times(int settles) const {
  std::vector<double> times;
  for (int i = 0; i < settles; ++i) times.push_back(median(trials_[i].means));
  return times;
}

void Tuning::settle(std::vector<double> agreed) {
  if (!replayed_.empty()) {
    if (replayed_.front().size() != agreed.size())
      fail(ErrorKind::mismatch, "the log that is replayed has the times of ", replayed_.front().size(),
           " candidates where there are ", agreed.size(), ": it belongs to other calls");
    agreed = std::move(replayed_.front());
    replayed_.pop_front();
  }
  if (agreements_.size() < kMostLogged) agreements_.push_back(agreed);
  if (agreed.size() == 1) return settle_watched(agreed[0]);
  ++version_;
  std::vector<int> order(agreed.size());
  std::iota(order.begin(), order.end(), 0);
  auto cost = [&](int place) { return agreed[place] * (codes(trials_[place].choice) ? coded_counts_ : 1); };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return cost(a) < cost(b); });
  std::vector<Trial> sorted;
  for (const int place : order) sorted.push_back(std::move(trials_[place]));
  std::move(sorted.begin(), sorted.end(), trials_.begin());
  const bool by_rule = both_ways_ && trials_.size() == candidates_.size();
  if (const int left = halved(sorted.size()); by_rule && left <= kPartWays) part_ways(left);
  // One is left: of those that dropped out first another one is the last to meet the best again.
  if (sorted.size() == 2 && trials_.size() > kRivalsAgain)
    std::rotate(trials_.begin() + kRivalsAgain - 1, trials_.begin() + kRivalsAgain, trials_.end());
  if (sorted.size() == 2) watching_.learnt(std::min(agreed[0], agreed[1]));
}

void Tuning::settle_watched(double agreed) {
  auto other_way = [&](const Trial& trial) { return trial.choice.way != trials_[0].choice.way; };
  const auto rival = std::find_if(trials_.begin(), trials_.end(), other_way);
  if (!watching_.swaps(agreed, rival != trials_.end())) return;
  std::swap(trials_[0], *rival);
  ++version_;
}

}  // namespace gpucomm
