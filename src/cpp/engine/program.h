// A plan with its sizes filled in: what the executor runs, cached per shape of call.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/call.h"
#include "engine/wide_sums.h"
#include "transports/transport.h"

namespace gpucomm {

inline constexpr size_t kMaxScratchBytes = 16u << 20;  // per communicator, whatever the message

struct Instruction {
  StepKind kind;
  bool final;
  int lane;
  Place source, target;
  size_t source_offset, target_offset, bytes;
  size_t message_offset;   // of the piece in the message
  std::vector<int> peers;  // of which something comes or goes: empty pieces move only a first header
  uint64_t salt = 0;       // added to the tag: 1 and the block's elements, where only its two ranks know them
  int below = 0;           // recv_reduce: how many peers fold in before this rank's own operand
  std::vector<int> after;
  // Who folds a message may write the result at once to where the answer belongs. send: the number of the
  // answer among the peer's messages to us in this call, from 1, or 0, and the step that receives it.
  // recv_reduce, by peer: the send that carries the result back, or -1.
  uint32_t answer = 0;
  int answered_by = -1;
  std::vector<int> answers;
  Receiver receiver = Receiver::any;  // send
  bool coded = false;                 // send, recv, reduce: of a coded piece
  uint32_t number = 0;                // send: of this message among ours to that peer
  // decode_reduce: the encode after it, which alone wants the sum, and the copy before it, whose source then
  // is the own operand; -1: none. These two are spared. (See recoding.h.)
  int encodes = -1, operand = -1;
  bool spared = false;
  bool unread = false;    // recv, copy: what it writes no step of this call reads
  InRow row = InRow::no;  // of a decode_reduce that adds to a sum in float32
  // Of what brings a coded piece, an encode or a recv, where it may pass without a slot of scratch: all that
  // uses it, a send and another step; else -1. (See passing.h.)
  int sent_by = -1, used_by = -1;
};

struct Program {
  Shape shape;  // algorithm and segments as chosen
  int world = 1, rank = 0, lanes = 0;
  int ranks_here = 1;  // of this rank's node
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> lane_steps;
  // Bytes of the message that this rank does not encode lossily.
  std::vector<std::pair<size_t, size_t>> exact;
  size_t input_shift = 0, output_shift = 0;  // bytes from the message's start to the array given
  size_t scratch_slot_bytes = 0, coded_slot_bytes = 0;
  // Coded slots follow those of scratch, and the sum of a row follows these.
  size_t coded_begin = 0, wide_begin = 0, scratch_bytes = 0;
  CallRecord record;  // all but sequence, tag and label
  uint64_t fingerprint = 0;
  bool only_sends = false;  // nothing that comes could show this rank that another makes another call
};

// Builds the plan of `shape` (algorithm and segments given) for this rank and fills it in. `nodes`: the node
// of each rank. Raises the segment count until the scratch fits. Throws unavailable for folds of more arrays
// at once than a device takes.
Program compile(const Shape& shape, const std::vector<int>& nodes, int rank);

// What runs without a plan of ours: no instructions.
Program opaque(const Shape& shape, int rank, int world);

// Where a program's spaces begin; indexed by Space.
using Spaces = std::array<std::byte*, 4>;
Spaces spaces_of(const Program& program, const Arrays& arrays, std::byte* scratch);

CallRecord make_record(const Shape& shape);
// Of all that ranks must agree on, the call's number not among it.
uint64_t fingerprint_of(const Shape& shape);
// Fingerprint of the `sequence`-th call.
uint64_t tag_of(uint64_t fingerprint, uint64_t sequence);
CallRecord tagged(const Program& program, uint64_t sequence, uint64_t label = 0);
// That a peer's block has another size than this rank expects: it sends so many elements.
std::string unfitting_counts(const Program& program, int peer, const CallRecord& record, uint64_t sent);
// "all_reduce #3 (sum of 1000 float32, algorithm ring, 4 segments)".
std::string describe(const CallRecord& record);

}  // namespace gpucomm
