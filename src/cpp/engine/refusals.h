// Calls that were refused for their arguments, here and at a peer that may therefore never come.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engine/drivable.h"
#include "transports/transport.h"

namespace gpucomm {

class Refusals {
 public:
  // Tells the other ranks that this one has refused that call.
  void tell(Transport& transport, uint64_t sequence, std::string text) {
    told_ = sequence;
    transport.refuse({sequence, count(sequence), Clock::now(), std::move(text)});
  }

  // This rank makes that call: if it has told of it, it has corrected it.
  void take_back(Transport& transport, uint64_t sequence) {
    if (told_ == sequence) transport.refuse({}), told_ = 0;
  }

  // Counts one of this rank's, and returns how often it has refused that call now.
  uint64_t count(uint64_t sequence) {
    const uint64_t times = ++times_[sequence];
    if (times_.size() > kRememberedCalls) times_.erase(times_.begin());
    return times;
  }

  // Whether a peer has refused its call more often than this rank has. It may still make it with other
  // arguments, so one that is here is given a while, from when this rank has come to `call` too.
  bool alone(const Refusal& theirs, bool gone, const Pending& call) const {
    constexpr auto kAgain = std::chrono::milliseconds(500);
    const auto ours = times_.find(theirs.sequence);
    if (ours != times_.end() && ours->second >= theirs.times) return false;
    if (gone) return true;
    if (!call.deadline) return false;
    const auto came = *call.deadline - clock_time(call.timeout);
    return Clock::now() - std::max(theirs.since, came) >= kAgain;
  }

 private:
  uint64_t told_ = 0;                   // the last that was told of, and is not made yet
  std::map<uint64_t, uint64_t> times_;  // of the last ones
};

}  // namespace gpucomm
