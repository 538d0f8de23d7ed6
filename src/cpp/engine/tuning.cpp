#include "engine/tuning.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"

namespace gpucomm {
namespace {

// Calls of a stage by candidate: what is short is timed more often, for it costs little and varies more.
constexpr double kShort_s = 1e-4, kLong_s = 0.1;
constexpr int kRepeatsOfShort = 15, kRepeats = 3, kRepeatsOfLong = 1;
// A candidate's first call also builds its plan and touches new memory.
constexpr int kWarmups = 1;
// The calls of a round are followed by so many times as many that try nothing.
constexpr int kRest = 64;
constexpr int kRivalsAgain = 4;
// Above this size the time of a message is taken as proportional to its bytes.
constexpr size_t kProportional = 64 << 10;

int repeats_for(double seconds) {
  return seconds < kShort_s ? kRepeatsOfShort : seconds < kLong_s ? kRepeats : kRepeatsOfLong;
}

double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + samples.size() / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace

Tuning::Tuning(std::vector<Choice> candidates, size_t most_bytes)
    : candidates_(std::move(candidates)),
      most_bytes_(most_bytes),
      rivals_(static_cast<int>(candidates_.size())),
      repeats_(repeats_for(candidates_[0].cost_s)),
      warmups_(repeats_ > 1 ? kWarmups : 0) {
  for (const Choice& choice : candidates_) trials_.push_back({choice});
}

Tuning::Turn Tuning::issue() {
  if (candidates_.size() == 1) return {};
  if (resting_ > 0 && --resting_ == 0) {
    rivals_ = std::min<int>(candidates_.size(), kRivalsAgain);
    issued_ = 0, spent_ = 0, ++round_;
    return {};
  }
  if (resting_ > 0) return {};
  Turn turn;
  const int warmups = spent_ == issued_ ? warmups_ : 0;  // of the round's first stage
  if (issued_ == rivals_ * (repeats_ + warmups)) {
    turn.settles = rivals_;
    rivals_ = (rivals_ + 1) / 2, issued_ = 0;
    if (rivals_ == 1) {
      resting_ = kRest * spent_;
      return turn;
    }
  }
  turn.place = shuffled(issued_);
  if (issued_ >= rivals_ * (spent_ == issued_ ? warmups_ : 0)) turn.round = round_;
  ++issued_, ++spent_;
  return turn;
}

// Every candidate once in each repeat, in an order that no pattern of the calls follows.
int Tuning::shuffled(int call) const {
  std::vector<int> places(rivals_);
  std::iota(places.begin(), places.end(), 0);
  auto rank = [&](int place) { return mix(mix(round_, call / rivals_), place); };
  std::sort(places.begin(), places.end(), [&](int a, int b) { return rank(a) < rank(b); });
  return places[call % rivals_];
}

void Tuning::record(const Turn& turn, double seconds, size_t bytes) {
  Trial& trial = trials_[turn.place];
  if (trial.round != turn.round) trial.samples.clear(), trial.round = turn.round;
  const bool proportional = bytes >= kProportional;
  trial.samples.push_back(proportional ? seconds * most_bytes_ / bytes : seconds);
}

std::vector<double> Tuning::times(int settles) const {
  std::vector<double> times;
  for (int i = 0; i < settles; ++i) times.push_back(median(trials_[i].samples));
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
  std::vector<int> order(agreed.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return agreed[a] < agreed[b]; });
  std::vector<Trial> sorted;
  for (const int place : order) sorted.push_back(std::move(trials_[place]));
  std::move(sorted.begin(), sorted.end(), trials_.begin());
  agreements_.push_back(std::move(agreed));
}

}  // namespace gpucomm
