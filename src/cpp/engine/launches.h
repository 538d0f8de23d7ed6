// The programs of all ranks of one process as one list of work for streams, in an order in which every piece
// of work comes after what it needs. Values only: built once per set of programs, enqueued again and again.
#pragma once
#include <vector>

#include "engine/program.h"

namespace gpucomm {

// Steps of ranks that are enqueued as one: what receives reads out of the senders' memory; sends are no work
// of their own. A coded piece is not received where all its users can read it in the slot that it was encoded
// into, of whichever rank.
struct Launch {
  struct Source {
    int rank, step;         // the send
    bool answered = false;  // the fold writes its result to where that rank wants it, too
  };
  struct Step {
    int rank, index;  // the instruction
    // Of what receives; of another step where its coded piece lies, if elsewhere.
    std::vector<Source> sources;
  };
  int track;                    // where it runs, in order
  std::vector<Step> steps;      // none of which comes after another
  std::vector<int> after = {};  // tracks: what they have recorded last is done before
  bool record = false;          // other tracks wait for it
};

struct Launches {
  std::vector<int> tracks;  // whose: the rank of each
  std::vector<Launch> list;
};

// Messages meet as in the verifier, which has shown that the plans come to an end: a send waits for its
// receive, and what it sent may be overwritten after that; a coded piece, after all have read it. A coded
// plan must have slots enough for that, as its tests on devices show.
// `on_one_device`: all on one track, and what nothing orders side by side.
Launches arrange(const std::vector<const Program*>& programs, bool on_one_device);

}  // namespace gpucomm
