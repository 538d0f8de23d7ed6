#include "engine/expectation.h"

namespace gpucomm {

static constexpr auto kPatience = std::chrono::milliseconds(500);

const Chunk* Expectation::doubt(int peer, const Instruction& in, uint64_t tag) {
  if (in.salt && transport_->call(peer, record_.sequence).tag == record_.tag)
    fail(ErrorKind::mismatch, unfitting_counts(*program_, peer, record_, tag - record_.tag - 1));
  const auto [mine, theirs] = disagreement(peer, tag);
  if (!theirs.in_use && may_be_told()) return nullptr;
  fail(ErrorKind::mismatch, "the ranks do not make the same call: rank ", program_->rank, " of ",
       program_->world, " calls ", describe(mine), ", rank ", peer, " ",
       theirs.in_use ? describe(theirs) : "one that it no longer remembers");
}

// Where no shared memory tells what a peer calls, it is asked while this rank waits.
bool Expectation::may_be_told() {
  const auto now = std::chrono::steady_clock::now();
  if (!in_doubt_since_) in_doubt_since_ = now;
  return now - *in_doubt_since_ < kPatience;
}

// The calls in which this rank and a peer, whose message carries `tag`, first differ: that may be an earlier
// one, which neither had reason to wait in.
std::pair<CallRecord, CallRecord> Expectation::disagreement(int peer, uint64_t tag) const {
  CallRecord theirs;
  const uint64_t first = record_.sequence > 7 ? record_.sequence - 7 : 1;
  for (uint64_t s = first; s <= record_.sequence + 8; ++s) {
    const CallRecord record = transport_->call(peer, s), own = transport_->call(program_->rank, s);
    if (record.in_use && own.in_use && record.tag != own.tag) return {own, record};
    if (record.in_use && record.tag == tag) theirs = record;
  }
  return {record_, theirs};
}

}  // namespace gpucomm
