// Whether what was learnt of the two ways of private arrays still holds. Which of them is quicker depends on
// where the ranks' cores are and on what else uses the memory, so it changes while a program runs; a rest is
// too long to wait then. Now and then three bursts of calls are timed in a row: when the first two took other
// times than the choice is known for, the third one takes its rival, the best of the other way. By counts and
// agreed times only, as all of Tuning.
#pragma once
#include <algorithm>

namespace gpucomm {

class Watch {
 public:
  static constexpr int kBursts = 3;

  // The agreed time of a choice, when it was taken.
  void learnt(double seconds) { known_ = seconds, step_ = 0; }

  // The agreed time of the latest of the three bursts. True: the choice and its rival change places, there or
  // back.
  bool swaps(double seconds, bool has_rival) {
    const int step = step_;
    step_ = (step_ + 1) % kBursts;
    if (step == 0) return first_ = seconds, false;
    if (step == 1) {
      doubted_ = has_rival && changed(first_) && changed(seconds) ? std::min(first_, seconds) : 0;
      return doubted_ > 0;
    }
    if (!doubted_) return false;
    known_ = std::min(seconds, doubted_);
    return seconds >= doubted_;
  }

 private:
  bool changed(double seconds) const {
    constexpr double kMuch = 1.25;
    return seconds > kMuch * known_ || known_ > kMuch * seconds;
  }

  int step_ = 0;
  double known_ = 0, first_ = 0, doubted_ = 0;
};

}  // namespace gpucomm
