// Before a rank that is a process enqueues anything, all ranks have announced the very same call.
#include "engine/device_execution.h"

namespace gpucomm {

void DeviceExecution::announce() {
  tell_salts();
  transport_->announce(call_.record);
  for (int peer = 0; peer < world_; ++peer)
    if (peer != rank_) transport_->wake(peer);
}

bool DeviceExecution::all_agree() {
  if (!all_came()) return false;
  check_salts();
  return true;
}

// Only the two ranks of a pair know the size of a block: the sender tells it before it announces the call.
void DeviceExecution::tell_salts() {
  for (const Instruction& in : program().instructions)
    if (in.kind == StepKind::send && in.salt && !in.peers.empty())
      words_->pairs[rank_][in.peers[0]].salt[turn_ % 2].store(in.salt, std::memory_order_relaxed);
}

// To this very call, which whoever waits checks (Communicator::check): nothing is enqueued before. A peer
// that no longer remembers it had found the calls alike.
bool DeviceExecution::all_came() const {
  const CallRecord& mine = call_.record;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    if (transport_->arrived(peer) < mine.sequence) return false;
    const CallRecord theirs = transport_->call(peer, mine.sequence);
    if (theirs.in_use && theirs.tag != mine.tag) return false;
  }
  return true;
}

// No rank is further than its next call on devices, which has the other salts.
void DeviceExecution::check_salts() const {
  for (const Instruction& in : program().instructions) {
    if (in.kind != StepKind::recv || !in.salt) continue;
    for (const int peer : in.peers)
      if (const uint64_t salt = words_->pairs[peer][rank_].salt[turn_ % 2].load(std::memory_order_relaxed);
          salt != in.salt)
        fail(ErrorKind::mismatch, unfitting_counts(program(), peer, call_.record, salt - 1));
  }
}

}  // namespace gpucomm
