#include "transports/link_ports.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <tuple>

#include "base/hash.h"

namespace gpucomm {
namespace {

constexpr int kPorts = 128, kPairs = 64 * 64, kBegan = kSharedClocks - 1;
// A message takes its ports a little late, dated back: by then every rank that could take one of them at the
// same time has woken up and said so. Not noticed, for the message still has longer to go.
constexpr uint64_t kMostGrace = 1'000'000;  // ns
constexpr uint64_t kGraceShare = 8;         // of the message's time

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e9 + 0.5); }

// What the word holds from now on: ours, unless another rank was first.
uint64_t set_once(Clocks& word, uint64_t ours) {
  uint64_t found = 0;
  return word.compare_exchange_strong(found, ours) ? ours : found;
}

}  // namespace

LinkPorts::LinkPorts(Clocks* clocks, const EmulatedLinks& links, int rank, int world, bool meets)
    : free_(clocks),
      waiting_(clocks + kPorts),
      posted_(clocks + kPorts + kPairs),
      links_(links),
      latency_(nanoseconds(links.lambda_s)),
      rank_(rank),
      world_(world),
      meets_(meets),
      sent_(world) {
  const uint64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  began_ = set_once(clocks[kBegan], links.began_ns ? links.began_ns : now);
}

LinkPorts::Route LinkPorts::route(int from, int to) const {
  const int both = links_.half_duplex ? 0 : 1;
  if (links_.chain)
    return {from, to, 2 * std::min(from, to) + (from > to ? both : 0), 2, std::abs(from - to), 0};
  const int a = links_.nodes[from], b = links_.nodes[to];
  return {a, b, 2 * a, 2 * (b - a) + both, a == b ? 0 : 2, latency_};
}

// Of the slowest part of the way, at that time.
double LinkPorts::beta(const Route& route, uint64_t at) const {
  const double passed = at > began_ ? static_cast<double>(at - began_) * 1e-9 : 0;
  auto now = links_.rates.begin();
  while (now + 1 != links_.rates.end() && now[1].from_s <= passed) ++now;
  const auto [low, high] = std::minmax(route.from, route.to);
  if (!links_.chain) return std::max(now->betas[low], now->betas[high]);
  return *std::max_element(now->betas.begin() + low, now->betas.begin() + high);
}

// When a message that is ready since then finds all its ports free; free(port, i) says when the i-th is.
template <class Free>
uint64_t LinkPorts::start(const Route& route, uint64_t since, Free free) {
  for (int i = 0; i < route.count; ++i) {
    const uint64_t at = free(route.clock(i), i);
    since = std::max(since, at - std::min(at, route.shift(i)));
  }
  return since;
}

void LinkPorts::post(int peer, uint64_t since) {
  posted(peer, rank_).store(since, std::memory_order_release);
}

uint64_t LinkPorts::take(int peer, size_t bytes, uint64_t now, SendProgress& progress) {
  const Route way = route(rank_, peer);
  if (!way.count) {
    progress.left = progress.there = progress.since;
    return 0;
  }
  if (meets_) {
    const uint64_t ready = posted(rank_, peer).load(std::memory_order_acquire);
    if (!ready) return kNever;
    progress.since = std::max(progress.since, ready - std::min(ready, latency_));
  }
  uint64_t seen[kPorts];
  waiting(rank_, peer).store(progress.since, std::memory_order_release);
  while (true) {
    const uint64_t begin = start(way, progress.since, [&](int port, int i) {
      return seen[i] = free_[port].load(std::memory_order_acquire);
    });
    const double rate = beta(way, begin);
    const uint64_t length = nanoseconds(links_.alpha_s + static_cast<double>(bytes) * rate);
    const uint64_t grace = std::min(kMostGrace, length / kGraceShare);
    if (begin + grace > now) return begin > now ? begin : begin + grace;
    // One that lets us wait for too long is not there to take its turn.
    if (now < begin + 2 * grace && !is_next(peer, begin, grace / 2)) return now + grace / 8 + 1;
    if (occupy(way, seen, begin + length)) {
      progress.left = begin + length, progress.ns_per_byte = rate * 1e9;
      break;
    }
  }
  waiting(rank_, peer).store(0, std::memory_order_release);
  if (meets_) posted(rank_, peer).store(0, std::memory_order_release);
  progress.there = progress.left + latency_ + jitter(peer);
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

// The messages that wait and could start by then, that to `peer` among them.
std::vector<LinkPorts::Waiting> LinkPorts::rivals(int peer, uint64_t latest) const {
  std::vector<Waiting> found;
  for (int from = 0; from < world_; ++from)
    for (int to = 0; to < world_; ++to) {
      const uint64_t since = waiting(from, to).load(std::memory_order_acquire);
      if (!since) continue;
      const Route way = route(from, to);
      const uint64_t at = start(way, since, [&](int port, int) { return free_[port].load(); });
      if (at <= latest) found.push_back({way, since, at, from, from == rank_ && to == peer});
    }
  return found;
}

// Whether the message comes next: what comes before it takes its ports in turn, and so may take those of
// others before it, until it is this one's turn or its ports are gone. Starts that differ by no more than
// `tie` count as the same: ranks do not begin a call at the same instant.
bool LinkPorts::is_next(int peer, uint64_t begin, uint64_t tie) const {
  std::vector<Waiting> all = rivals(peer, begin + tie);
  auto turn = [&](const Waiting& w) {
    const bool before = w.start + tie < begin;
    return std::tuple(!before, before ? w.start : 0, w.rank, w.since);
  };
  std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return turn(a) < turn(b); });
  std::array<bool, kPorts> gone{};
  for (const Waiting& w : all) {
    bool goes = true;
    for (int i = 0; i < w.route.count; ++i) goes &= !gone[w.route.clock(i)];
    if (w.mine) return goes;
    for (int i = 0; goes && i < w.route.count; ++i) gone[w.route.clock(i)] = true;
  }
  return true;  // its ports were taken just now: occupy() will find out
}

// The same for the same message of every run.
uint64_t LinkPorts::jitter(int peer) {
  const uint64_t hash = mix(mix(mix(links_.seed, rank_), peer), sent_[peer]++);
  return nanoseconds(links_.jitter_s * static_cast<double>(hash >> 11) * 0x1p-53);
}

uint64_t began(const Clocks* clocks) { return clocks[kBegan].load(); }

uint64_t fingerprint(const EmulatedLinks& links) {
  uint64_t hash = mix(links.seed, links.chain + 2 * links.half_duplex);
  auto add = [&](double value) { hash = mix(hash, std::bit_cast<uint64_t>(value)); };
  for (double value : {links.alpha_s, links.lambda_s, links.jitter_s}) add(value);
  for (int node : links.nodes) hash = mix(hash, node);
  for (const auto& [from_s, betas] : links.rates) {
    add(from_s);
    for (double value : betas) add(value);
  }
  return hash | 1;
}

}  // namespace gpucomm
