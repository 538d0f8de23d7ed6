// What comes next from a peer in a call, which must be of this call: every message carries its tag.
#pragma once
#include <chrono>
#include <optional>
#include <utility>

#include "engine/program.h"

namespace gpucomm {

class Expectation {
 public:
  // Of the call with this record.
  void start(const Program& program, Transport& transport, const CallRecord& record) {
    program_ = &program, transport_ = &transport, record_ = record;
    in_doubt_since_.reset();
  }
  const CallRecord& record() const { return record_; }
  uint64_t tag(const Instruction& in) const { return record_.tag + in.salt; }
  // The next chunk of an instruction's message; null: none yet. Another call's message is the ranks'
  // disagreement: throws mismatch.
  const Chunk* next(int peer, const Instruction& in) {
    const Chunk* chunk = transport_->peek(peer);
    return !chunk || chunk->tag == tag(in) ? chunk : doubt(peer, in, chunk->tag);
  }

 private:
  const Chunk* doubt(int peer, const Instruction& in, uint64_t tag);
  std::pair<CallRecord, CallRecord> disagreement(int peer, uint64_t tag) const;
  bool may_be_told();

  const Program* program_ = nullptr;
  Transport* transport_ = nullptr;
  CallRecord record_;
  std::optional<std::chrono::steady_clock::time_point> in_doubt_since_;
};

}  // namespace gpucomm
