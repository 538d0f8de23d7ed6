// One running call: a state machine over the program's lanes that never blocks.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/expectation.h"

namespace gpucomm {

struct PieceCoding;

class Execution {
 public:
  // Prepares to run `program` as the call with this tag. The program, the arrays and the scratch must outlive
  // it.
  void start(const Program& program, Transport& transport, const Arrays& arrays, std::byte* scratch,
             const CallRecord& record);
  // Does all that can be done now; false if nothing could. Throws mismatch on another call's message.
  bool advance();
  bool done() const { return remaining_ == 0; }
  const CallRecord& record() const { return expected_.record(); }
  uint64_t encodes() const { return encodes_; }
  uint64_t decodes() const { return decodes_; }

 private:
  enum class Outcome { waiting, moved, finished };
  // Whether the fold has written a send's message to where it goes, or could not write some of it.
  enum class Answered : uint8_t { no, yes, failed };
  struct Loan {  // a send whose memory the peer is still reading
    int step;
    SendProgress progress;
  };
  struct LaneState {
    size_t next = 0;
    SendProgress progress;
    std::deque<Loan> loans;
  };
  bool advance(LaneState& lane, const std::vector<int>& steps);
  bool settle_loans(LaneState& lane);
  void finish(int step);
  Outcome run(const Instruction& in, LaneState& lane);
  Outcome send(const Instruction& in, LaneState& lane);
  Outcome receive(const Instruction& in, LaneState& lane);
  Outcome receive_coded(const Instruction& in, LaneState& lane);
  void code(const Instruction& in);
  Losses losses(const Instruction& in) const;
  void encode(const Instruction& in, const PieceCoding& coding);
  [[noreturn]] void refuse(const Instruction& in, const RefusedElement& refused) const;
  void recode(const Instruction& in, const PieceCoding& coding);
  const std::byte* operand(const Instruction& in) const;
  void add_wide(const Instruction& in, PieceCoding coding);
  Outcome receive_and_reduce(const Instruction& in, LaneState& lane);
  void fold(const Instruction& in, const void* const* sources, int count, size_t at, size_t bytes,
            std::byte* twin = nullptr);
  void take(int peer, int answer, size_t moved, size_t bytes);
  bool ready(const Instruction& in) const;
  CopyBytes copy_for(const Instruction& in) const;
  void fold_and_answer(const Instruction& in, size_t moved, size_t bytes);
  std::byte* at(const Place& place, size_t offset) const;

  const Program* program_ = nullptr;
  Transport* transport_ = nullptr;
  Spaces spaces_{};
  std::byte* error_ = nullptr;
  double* lost_sq_ = nullptr;
  size_t footprint_ = 0;  // bytes of the arrays of this node's ranks
  bool keeps_ = false;    // what is folded goes back in the memory that it came in
  Expectation expected_;
  std::vector<LaneState> lanes_;
  std::vector<uint8_t> done_;
  std::vector<const void*> sources_;
  std::vector<std::byte*> homes_;  // of these, where the result goes too
  std::vector<int> answers_;  // of the chunk at hand, by source: the send whose message goes over it, or -1
  std::vector<Answered> answered_;  // by send
  // Of the chunk at hand from each peer, by a fold whose sources are cut otherwise.
  std::vector<size_t> taken_;
  size_t remaining_ = 0;
  uint64_t encodes_ = 0, decodes_ = 0;  // of this call, codings of anything
};

}  // namespace gpucomm
