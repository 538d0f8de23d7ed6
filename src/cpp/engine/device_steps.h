// What a rank does by itself in a program whose arrays a device holds, enqueued on a stream.
#pragma once
#include <utility>
#include <vector>

#include "devices/device.h"
#include "engine/program.h"

namespace gpucomm {

// Bytes of a piece's message. How long a coded one is only the device knows: it travels in its whole slot.
size_t message_bytes(const Program& program, const Instruction& in);

// Where what encodings lose is squared and added up, as Device::add_squares does, and room for the largest
// piece as it is decoded.
struct Lost {
  std::byte *parts = nullptr, *became = nullptr;
};

struct DeviceCall {
  const Program& program;
  Spaces spaces;
  Device& device;
  Stream stream;
  std::byte* error = nullptr;  // as of Arrays
  Lost lost = {};
  CodingFaults* faults = nullptr;  // as of CodedPiece
  // Where a coded piece lies that a step decodes, and where to put the one that it encodes, in place of their
  // slots of scratch.
  const std::byte* arrived = nullptr;
  std::byte* leaves = nullptr;

  std::byte* source(const Instruction& in) const {
    return spaces[static_cast<size_t>(in.source.space)] + in.source_offset;
  }
  std::byte* target(const Instruction& in) const {
    return spaces[static_cast<size_t>(in.target.space)] + in.target_offset;
  }
  const std::byte* coded_source(const Instruction& in) const { return arrived ? arrived : source(in); }
  std::byte* coded_target(const Instruction& in) const { return leaves ? leaves : target(in); }
  size_t message_bytes(const Instruction& in) const { return gpucomm::message_bytes(program, in); }
};

// Of a piece: where it begins and how long it is, in bytes.
struct Part {
  size_t begin, bytes;
};
// recv_reduce: what came from each peer, in their order, folded with the own operand into the target.
Fold fold_of(const DeviceCall& call, const Instruction& in, std::vector<const std::byte*> arrived, Part part);
inline void enqueue_fold(const DeviceCall& call, const Instruction& in, std::vector<const std::byte*> arrived,
                         Part part) {
  call.device.reduce(fold_of(call, in, std::move(arrived), part), call.stream);
}
// Which divides a mean: the step that completes it.
int divisor_of(const DeviceCall& call, const Instruction& in);

// What a device is given to do side by side: of one kind, with one divisor.
struct Batch {
  std::vector<Copy> copies;
  std::vector<Fold> folds;
  std::vector<Encoding> encodings;
  std::vector<Decoding> decodings, additions;  // each behind its copy
  std::vector<Recoding> recodings;
  int divisor = 1;
  void enqueue(Device& device, Stream stream) const;
};
// reduce, encode, decode, decode_reduce, copy: where it is more than fits in there, enqueued at once.
void add_local(Batch& batch, const DeviceCall& call, const Instruction& in);
inline void enqueue_local(const DeviceCall& call, const Instruction& in) {
  Batch batch;
  add_local(batch, call, in);
  batch.enqueue(call.device, call.stream);
}

// What a rank moves and codes in a call; of coded pieces whole slots.
struct Traffic {
  Transport::Counters counters;
  uint64_t encodes = 0, decodes = 0;
};
Traffic traffic_of(const Program& program);

}  // namespace gpucomm
