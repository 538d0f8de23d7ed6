// What is wrong with a plan, as the verifier says it.
#pragma once
#include <string>

#include "base/error.h"
#include "plans/plan.h"

namespace gpucomm {

inline std::string label(const Plan& plan) {
  return concat("plan ", name_of(plan.collective), "/", plan.algorithm, ", rank ", plan.rank, " of ",
                plan.world);
}

template <class... Parts>
[[noreturn]] void plan_fault(const Plan& plan, int index, const Parts&... parts) {
  const Step& step = plan.steps[index];
  fail(ErrorKind::mismatch, label(plan), ": step ", index, " (", name_of(step.kind), " of piece ", step.piece,
       " in round ", step.round, ") ", parts...);
}

}  // namespace gpucomm
