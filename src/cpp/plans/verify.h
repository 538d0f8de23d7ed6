// The verifier: symbolic execution of all ranks at once, by rendezvous, without any buffering.
#pragma once
#include <cstddef>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

// What a valid set of plans does. Any fault throws mismatch with a sentence: a send that meets no receive, a
// deadlock, messages of a pair whose order could differ at its ends, a read of something not there, a result
// that lacks or repeats a contribution, two unordered steps of which one writes what the other touches.
struct Verified {
  size_t messages = 0;
  int rounds = 0;
  int lossy_passes = 0;   // the most that lie on any contribution's way into any result
  int encode_errors = 0;  // the most encodings of which a result has the error: its bound is so many of one's
  int repeats = 0;        // the most times that a rank encodes a piece
  int scratch_slots = 0;  // the most of any rank
  std::vector<size_t> sent;  // pieces sent by each rank
};

Verified verify(const std::vector<Plan>& plans);

}  // namespace gpucomm
