// A program over NCCL: round by round on one stream, all messages of a round in one group, then what follows
// them. What a fold takes lands in memory of its own first.
#pragma once
#include <vector>

#include "devices/nccl_communicator.h"
#include "engine/program.h"

namespace gpucomm {

struct Grouped {
  struct Round {
    std::vector<int> messages, after;  // instructions that move something, in the order of the program
  };
  std::vector<int> before;  // what comes before all messages
  std::vector<Round> rounds;
  std::vector<size_t> landing;  // by instruction: where the first message of a recv_reduce lands
  size_t landing_begin = 0;     // behind the program's own scratch
  size_t scratch_bytes = 0;     // of both
};

// `nodes`: as compile() had them. A program's rounds hold for all ranks, whether they work in place or not.
Grouped group(const Program& program, const std::vector<int>& nodes);

// `scratch`: Grouped::scratch_bytes of the device's memory, which no other call uses before the stream is
// done with this one. Throws unavailable where the device cannot code these elements.
void enqueue(const Program& program, const Grouped& grouped, const Arrays& arrays, std::byte* scratch,
             NcclCommunicator& communicator, Device& device, Stream stream, const Deadline& deadline);

}  // namespace gpucomm
