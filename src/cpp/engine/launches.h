// The programs of all ranks of one process as one list of work for streams, in an order in which every piece
// of work comes after what it needs. Values only: built once per set of programs, enqueued again and again.
#pragma once
#include <vector>

#include "engine/program.h"

namespace gpucomm {

// A step of a rank: what receives reads out of the senders' memory; sends are no work of their own. A coded
// piece is not received where all its users can read it in the slot that it was encoded into, of whichever
// rank.
struct Launch {
  struct Source {
    int rank, step;         // the send
    bool answered = false;  // the fold writes its result to where that rank wants it, too
  };
  int track;                    // where it runs, in order
  int rank, step;               // the instruction
  std::vector<int> after;       // tracks: what they have recorded last is done before
  bool record = false;          // other tracks wait for it
  std::vector<Source> sources;  // of what receives; of another step where its coded piece lies, if elsewhere
  // Of a decoding, others of its rank and track at the same time.
  struct Joined {
    int step;
    std::vector<Source> sources;
  };
  std::vector<Joined> joined = {};
};

struct Launches {
  std::vector<int> tracks;  // whose: the rank of each
  std::vector<Launch> list;
  bool one_fold = false;  // each rank has one step, a fold, and they can all be one piece of work
};

// Messages meet as in the verifier, which has shown that the plans come to an end: a send waits for its
// receive, and what it sent may be overwritten after that; a coded piece, after all have read it. A coded
// plan must have slots enough for that, as its tests on devices show.
// `on_one_device`: where each rank has one step at most, as of `direct`, all are on one track; in a graph,
// whose launch does not take longer for more, only if these are folds.
Launches arrange(const std::vector<const Program*>& programs, bool on_one_device, bool in_graph);

}  // namespace gpucomm
