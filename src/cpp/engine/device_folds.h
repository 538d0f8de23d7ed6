// Which plans a device can run: it folds so many arrays at once and no more.
#pragma once
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "devices/device.h"
#include "plans/plan.h"

namespace gpucomm {

// How many arrays a step of any rank folds, its own among them.
inline size_t most_folded(const std::vector<Plan>& plans) {
  size_t most = 0;
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps)
      if (step.kind == StepKind::recv_reduce) most = std::max(most, step.peers.size() + 1);
  return most;
}

inline bool device_folds(const std::vector<Plan>& plans) { return most_folded(plans) <= kMaxSources; }

inline void check_device_folds(const std::vector<Plan>& plans) {
  if (device_folds(plans)) return;
  fail(ErrorKind::unavailable, "algorithm ", plans[0].algorithm, " folds ", most_folded(plans),
       " arrays at once, and a device takes at most ", kMaxSources, ": choose another for ", plans[0].world,
       " ranks");
}

}  // namespace gpucomm
