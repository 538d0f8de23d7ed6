// The cost of a plan: its steps list-scheduled on a model of the links.
#pragma once
#include <string>
#include <vector>

#include "plans/links.h"
#include "plans/plan.h"

namespace gpucomm {

// What a codec costs: coded bytes for a byte, and seconds a byte to encode and to decode.
struct Coding {
  double ratio = 1, encode = 0, decode = 0;
};

struct Timed {
  int rank, step, peer;  // peer: where a send goes to; -1 for a local step
  double start_s, end_s;
};

struct Schedule {
  double total_s = 0;
  std::vector<Timed> events;  // in the order in which they end; of one time by rank, then step
};

// `offset_bytes`: the layout in bytes, pieces + 1. Deterministic: ties go to the lower rank, then lane.
// Throws mismatch when the plans never finish.
Schedule schedule(const std::vector<Plan>& plans, const std::vector<size_t>& offset_bytes, const Links& links,
                  const Coding& coding = {});

// The total time of a call on `bytes`; where every rank has a part, on the largest multiple of the world.
// Plans are built rank by rank and forgotten, so that thousands of ranks fit into memory.
double total_time(std::string_view algorithm, PlanRequest request, size_t bytes, const Links& links,
                  const Coding& coding = {});

}  // namespace gpucomm
