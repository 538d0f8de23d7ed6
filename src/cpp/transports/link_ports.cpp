#include "transports/link_ports.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstdlib>

#include "base/hash.h"

namespace gpucomm {
namespace {

constexpr int kPorts = 128;
// A message takes its ports a little late, dated back: by then every rank that could take one of them at the
// same time has woken up and said so. Not noticed, for the message still has longer to go.
constexpr uint64_t kMostGrace = 1'000'000;  // ns
constexpr uint64_t kGraceShare = 8;         // of the message's time

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e9 + 0.5); }

}  // namespace

LinkPorts::LinkPorts(Clocks* clocks, const EmulatedLinks& links, int rank, int world)
    : free_(clocks),
      waiting_(clocks + kPorts),
      links_(links),
      latency_(nanoseconds(links.lambda_s)),
      rank_(rank),
      world_(world),
      sent_(world) {}

LinkPorts::Route LinkPorts::route(int from, int to) const {
  const int both = links_.half_duplex ? 0 : 1;
  if (links_.chain) return {2 * std::min(from, to) + (from > to ? both : 0), 2, std::abs(from - to), 0};
  return {2 * from, 2 * (to - from) + both, 2, latency_};
}

bool LinkPorts::meet(const Route& a, const Route& b) const {
  std::bitset<kPorts> ports;
  for (int i = 0; i < a.count; ++i) ports.set(a.clock(i));
  for (int i = 0; i < b.count; ++i)
    if (ports.test(b.clock(i))) return true;
  return false;
}

// When a message that is ready since then finds all its ports free; `seen` gets the words read.
uint64_t LinkPorts::start(const Route& route, uint64_t since, uint64_t* seen) const {
  for (int i = 0; i < route.count; ++i) {
    const uint64_t free = free_[route.clock(i)].load(std::memory_order_acquire);
    if (seen) seen[i] = free;
    since = std::max(since, free - std::min(free, route.shift(i)));
  }
  return since;
}

uint64_t LinkPorts::take(int peer, size_t bytes, uint64_t now, SendProgress& progress) {
  const Route way = route(rank_, peer);
  const uint64_t length = nanoseconds(links_.alpha_s + static_cast<double>(bytes) * links_.beta_s);
  const uint64_t grace = std::min(kMostGrace, length / kGraceShare);
  uint64_t seen[kPorts];
  waiting(rank_, peer).store(progress.since, std::memory_order_release);
  while (true) {
    const uint64_t begin = start(way, progress.since, seen);
    if (begin + grace > now) return begin > now ? begin : begin + grace;
    // One that lets us wait for too long is not there to take its turn.
    if (now < begin + 2 * grace && !is_next(peer, begin, grace / 2)) return now + grace / 8 + 1;
    progress.left = begin + length;
    if (occupy(way, seen, progress.left)) break;
  }
  waiting(rank_, peer).store(0, std::memory_order_release);
  progress.there = progress.left + latency_ + jitter(peer), progress.ns_per_byte = links_.beta_s * 1e9;
  return 0;
}

// Without a lock, for its holder might be killed: who finds that another rank was quicker gives back what it
// has. A rank killed on the way leaves ports busy for the length of its message.
bool LinkPorts::occupy(const Route& route, const uint64_t* seen, uint64_t left) {
  auto swap = [&](int i, uint64_t from, uint64_t to) {
    return free_[route.clock(i)].compare_exchange_strong(from, to, std::memory_order_acq_rel);
  };
  int taken = 0;
  while (taken < route.count && swap(taken, seen[taken], left + route.shift(taken))) ++taken;
  if (taken == route.count) return true;
  while (taken-- > 0) swap(taken, left + route.shift(taken), seen[taken]);
  return false;
}

// Whether no waiting message that wants one of the same ports comes before. Starts that differ by no more
// than `tie` count as the same: ranks do not begin a call at the same instant. Of this rank's own messages
// the first that asks is next, for these ask in the order of their lanes.
bool LinkPorts::is_next(int peer, uint64_t begin, uint64_t tie) const {
  const Route mine = route(rank_, peer);
  for (int from = 0; from < world_; ++from)
    for (int to = 0; to < world_; ++to) {
      const uint64_t since = waiting(from, to).load(std::memory_order_acquire);
      if (!since || (from == rank_ && to == peer)) continue;
      const Route other = route(from, to);
      if (!meet(mine, other)) continue;
      const uint64_t theirs = start(other, since);
      if (theirs + tie < begin || (theirs <= begin + tie && from < rank_)) return false;
    }
  return true;
}

// The same for the same message of every run.
uint64_t LinkPorts::jitter(int peer) {
  const uint64_t hash = mix(mix(mix(links_.seed, rank_), peer), sent_[peer]++);
  return nanoseconds(links_.jitter_s * static_cast<double>(hash >> 11) * 0x1p-53);
}

uint64_t fingerprint(const EmulatedLinks& links) {
  uint64_t hash = mix(links.seed, links.chain + 2 * links.half_duplex);
  for (double value : {links.alpha_s, links.lambda_s, links.beta_s, links.jitter_s})
    hash = mix(hash, std::bit_cast<uint64_t>(value));
  return hash | 1;
}

}  // namespace gpucomm
