// The steps of ranks that have one device, on one stream: a step of each fills it, so nothing is gained by
// streams of their own, which the host would have to order. What nothing orders is one piece of work, by
// which the host enqueues a step of all ranks at once.
#pragma once
#include <vector>

#include "engine/launches.h"
#include "engine/loans.h"

namespace gpucomm {

// `before`: by launch, what it comes after.
void put_side_by_side(const std::vector<const Program*>& programs, Launches& launches,
                      const std::vector<Ends>& before);

}  // namespace gpucomm
