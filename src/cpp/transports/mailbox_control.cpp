// The control channel of a mailbox: who is in which call, who has left, and poison.
#include <algorithm>
#include <cstring>

#include "base/env.h"
#include "base/soon.h"
#include "transports/mailbox.h"
#include "transports/mailbox_layout.h"

namespace gpucomm {

using namespace std::chrono_literals;

void Mailbox::announce(const CallRecord& record) {
  uint64_t words[CallRecord::kWords] = {};
  std::memcpy(words, &record, sizeof record);
  auto& cells = area(rank_).records[record.sequence % kRememberedCalls];
  // Its first word says which record it is: it goes first and comes last.
  cells[0].store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (int i = 1; i < CallRecord::kWords; ++i) cells[i].store(words[i], std::memory_order_relaxed);
  cells[0].store(words[0], std::memory_order_release);
  open_begin_ = open_end_ = nullptr;
  if (unprobed_) probe_peers();
  if (!heard_cpus_) hear_cpus();
  area(rank_).arrived.store(record.sequence, std::memory_order_release);
}

void Mailbox::complete(uint64_t sequence) {
  open_begin_ = open_end_ = nullptr;  // all answers are here: a later fault leaves the array alone
  area(rank_).completed.store(sequence, std::memory_order_release);
}

CallRecord Mailbox::call(int rank, uint64_t sequence) const {
  uint64_t words[CallRecord::kWords];
  auto& cells = area(rank).records[sequence % kRememberedCalls];
  for (int i = 0; i < CallRecord::kWords; ++i) words[i] = cells[i].load(std::memory_order_acquire);
  std::atomic_thread_fence(std::memory_order_acquire);
  CallRecord record;
  std::memcpy(&record, words, sizeof record);
  const bool whole = cells[0].load(std::memory_order_relaxed) == sequence;
  if (record.sequence != sequence || !whole) record.in_use = 0;
  return record;
}

uint64_t Mailbox::arrived(int rank) const { return area(rank).arrived.load(std::memory_order_acquire); }
uint64_t Mailbox::completed(int rank) const { return area(rank).completed.load(std::memory_order_acquire); }

void Mailbox::refuse(const Refusal& refusal) {
  RankArea& mine = area(rank_);
  uint64_t words[Refusal::kMost / 8] = {};
  std::memcpy(words, refusal.text.data(), std::min(refusal.text.size(), Refusal::kMost));
  mine.refused.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // before the text, whatever comes first otherwise
  for (size_t i = 0; i < std::size(words); ++i)
    mine.refused_text[i].store(words[i], std::memory_order_relaxed);
  mine.refused_times.store(refusal.times, std::memory_order_release);
  mine.refused_since_ns.store(refusal.since.time_since_epoch() / 1ns, std::memory_order_relaxed);
  mine.refused.store(refusal.sequence, std::memory_order_release);
}

Refusal Mailbox::refusal(int rank) const {
  const RankArea& theirs = area(rank);
  Refusal refusal{.sequence = theirs.refused.load(std::memory_order_acquire)};
  if (!refusal.sequence) return {};
  refusal.times = theirs.refused_times.load(std::memory_order_acquire);
  uint64_t words[Refusal::kMost / 8];
  for (size_t i = 0; i < std::size(words); ++i)
    words[i] = theirs.refused_text[i].load(std::memory_order_relaxed);
  const auto* text = reinterpret_cast<const char*>(words);
  refusal.text.assign(text, strnlen(text, Refusal::kMost));
  refusal.since += theirs.refused_since_ns.load(std::memory_order_relaxed) * 1ns;
  std::atomic_thread_fence(std::memory_order_acquire);
  // The same call may have been refused once more meanwhile.
  const bool whole = theirs.refused.load(std::memory_order_relaxed) == refusal.sequence &&
                     theirs.refused_times.load(std::memory_order_relaxed) == refusal.times;
  return whole ? refusal : Refusal{};
}

void Mailbox::tell(int peer, uint64_t word) {
  device_words()->pairs[rank_][peer].word.store(word, std::memory_order_release);
  wake(peer);
}

uint64_t Mailbox::told(int peer) {
  return device_words()->pairs[peer][rank_].word.load(std::memory_order_acquire);
}

void Mailbox::leave() {
  area(rank_).left.store(1, std::memory_order_release);
  for (int peer = 0; peer < world_; ++peer)
    if (peer != rank_) ring_bell(peer);
}

std::string Mailbox::gone(int rank) const {
  return area(rank).left.load(std::memory_order_acquire) ? kHasClosed : "";
}

std::pair<int64_t, Birth> Mailbox::who(int rank) const {
  const int64_t pid = area(rank).pid.load(std::memory_order_acquire);
  return {
      pid,
      {area(rank).started.load(std::memory_order_acquire), area(rank).clock.load(std::memory_order_acquire)}};
}

void Mailbox::set_process(int64_t pid, const Birth& birth) {
  RankArea& own = area(rank_);
  if (env().cma) {
    cookie_ = kMagic ^ static_cast<uint64_t>(pid) << 32 ^ static_cast<uint64_t>(birth.ticks) ^
              reinterpret_cast<uint64_t>(this);
    own.cookie.store(cookie_, std::memory_order_relaxed);
    own.cookie_address.store(reinterpret_cast<uint64_t>(&cookie_), std::memory_order_relaxed);
    unprobed_ = world_ - 1;
    let_siblings_read();
  }
  own.started.store(birth.ticks, std::memory_order_release);
  own.clock.store(birth.clock, std::memory_order_release);
  own.pid.store(pid, std::memory_order_release);
}

std::string Mailbox::describe(int) const { return ""; }

void Mailbox::poison(const Poison& poison) {
  auto* header = reinterpret_cast<RegionHeader*>(base_);
  uint32_t none = 0;
  const auto mine = static_cast<uint32_t>(2 * (1 + poison.rank));
  if (header->poison_state.compare_exchange_strong(none, mine)) {
    header->poison_kind = static_cast<uint32_t>(poison.kind);
    std::strncpy(header->poison_text, poison.text.c_str(), sizeof header->poison_text - 1);
    header->poison_state.store(mine + 1, std::memory_order_release);
  }
  // Before whatever the caller writes into arrays that others may be reading; they look at the poison after.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int peer = 0; peer < world_; ++peer)
    if (peer != rank_) ring_bell(peer);
}

bool Mailbox::poisoned() const {
  return reinterpret_cast<RegionHeader*>(base_)->poison_state.load(std::memory_order_acquire) != 0;
}

// Its words are there at once, unless the rank that found it ended or was stopped while it wrote them.
Poison Mailbox::poison() const {
  const auto* header = reinterpret_cast<RegionHeader*>(base_);
  uint32_t state = 0;
  soon(50ms, [&] {
    state = header->poison_state.load(std::memory_order_acquire);
    return !state || state % 2;
  });
  if (!state) return {};
  const int rank = static_cast<int>(state / 2) - 1;
  if (state % 2 == 0) return {rank, ErrorKind::peer_lost, "a fault, of which it could say no more"};
  return {rank, static_cast<ErrorKind>(header->poison_kind), header->poison_text};
}

Clocks* Mailbox::clocks() { return reinterpret_cast<RegionHeader*>(base_)->clocks; }

Census* Mailbox::census() { return &reinterpret_cast<RegionHeader*>(base_)->census; }

DeviceWords* Mailbox::device_words() { return &reinterpret_cast<RegionHeader*>(base_)->device_words; }

uint64_t Mailbox::agree(uint64_t word) {
  uint64_t first = 0;
  auto& agreed = reinterpret_cast<RegionHeader*>(base_)->agreed;
  return agreed.compare_exchange_strong(first, word) ? word : first;
}

}  // namespace gpucomm
