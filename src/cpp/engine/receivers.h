// What the receivers of a rank's messages do with them, by which its transport chooses how they travel.
#pragma once
#include <vector>

#include "plans/plan.h"
#include "transports/transport.h"

namespace gpucomm {

// By step of `plan`; any: it is no send, or of what this rank folds itself. `all`: the plans of all ranks.
// Who folds nothing of a long message itself rather copies a part of it into shared memory while its receiver
// folds another.
std::vector<Receiver> receivers_of(const Plan& plan, const std::vector<Plan>& all, size_t bytes);

}  // namespace gpucomm
