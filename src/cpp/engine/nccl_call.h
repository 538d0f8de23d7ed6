// A program over NCCL: round by round on one stream, all messages of a round in one group, then what follows
// them. What a fold takes lands in memory of its own first.
#pragma once
#include <vector>

#include "devices/nccl_communicator.h"
#include "engine/program.h"

namespace gpucomm {

struct Grouped {
  Program program;
  struct Round {
    std::vector<int> messages, after;  // instructions that move something, in the order of the program
  };
  std::vector<int> before;  // what comes before all messages
  std::vector<Round> rounds;
  std::vector<size_t> landing;  // by instruction: where the first message of a recv_reduce lands
  size_t landing_begin = 0;     // behind the program's own scratch
  size_t scratch_bytes = 0;     // of both
};

// As compile(), which this calls: raises the segment count also until what lands at once on the neediest rank
// fits in kMaxScratchBytes. The rounds hold for all ranks, whether they work in place or not. Throws
// unavailable for a fold of more sources than a device takes.
Grouped compile_grouped(Shape shape, const std::vector<int>& nodes, int rank);

// `scratch`: Grouped::scratch_bytes of the device's memory, which no other call uses before the stream is
// done with this one. Throws unavailable where the device cannot code these elements.
void enqueue(const Grouped& grouped, const Arrays& arrays, std::byte* scratch, NcclCommunicator& communicator,
             Device& device, Stream stream, const Deadline& deadline);

}  // namespace gpucomm
