// Gather and scatter over a tree whose subtrees are ranges of neighbouring ranks.
#pragma once
#include "plans/plan.h"

namespace gpucomm {

void build_range_tree(const PlanRequest& request, Plan& plan);

}  // namespace gpucomm
