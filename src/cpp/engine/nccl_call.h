// A program over NCCL: round by round on one stream, all messages of a round in one group, then what follows
// them. What a fold takes lands in memory of its own first.
#pragma once
#include <vector>

#include "devices/nccl_communicator.h"
#include "engine/device_steps.h"

namespace gpucomm {

struct Grouped {
  Program program;
  struct Round {
    std::vector<int> messages, after;  // instructions that move something, in the order of the program
  };
  std::vector<int> before;  // what comes before all messages
  std::vector<Round> rounds;
  std::vector<size_t> landing;  // by instruction: where the first message of a recv_reduce lands
  size_t landing_begin = 0;     // behind the program's own scratch, of which it is a part
};

// As compile(), which this calls: raises the segment count also until what lands at once on the neediest rank
// fits in kMaxScratchBytes. The rounds hold for all ranks, whether they work in place or not. Throws
// unavailable for a fold of more sources than a device takes.
Grouped compile_grouped(Shape shape, const std::vector<int>& nodes, int rank);

// A call on its way onto a stream. The program and its scratch must outlive it.
class NcclCall {
 public:
  NcclCall(const Grouped& grouped, DeviceCall call, std::byte* scratch)
      : grouped_(grouped), call_(std::move(call)), landing_(scratch + grouped.landing_begin) {}
  // Enqueues the messages of the next round, after what follows those of the round before, which NCCL must
  // have enqueued; false: there was no round left, all is. null: there are no messages, in a world of one.
  bool advance(NcclCommunicator* communicator);

 private:
  const Instruction& at(int index) const { return grouped_.program.instructions[index]; }
  std::byte* landing(int index, size_t k) const;
  void add_messages(int index);
  void follow(int index);

  const Grouped& grouped_;
  DeviceCall call_;
  std::byte* landing_;
  std::vector<NcclMessage> messages_;
  size_t next_ = 0;  // round
};

}  // namespace gpucomm
