#include "transports/link_ports.h"

#include <algorithm>
#include <bit>

namespace gpucomm {
namespace {

// A message takes its ports a little late, dated back: by then every rank that could take one of them at the
// same time has woken up and said so. Not noticed, for the message still has longer to go.
constexpr uint64_t kMostGrace = 1'000'000;  // ns
constexpr uint64_t kGraceShare = 8;         // of the message's time

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e9 + 0.5); }

uint64_t mix(uint64_t hash, uint64_t value) {  // splitmix64's finaliser
  hash += 0x9e3779b97f4a7c15 + value;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

}  // namespace

LinkPorts::LinkPorts(Clocks* clocks, const EmulatedLinks& links, int rank, int world)
    : clocks_(clocks), wanted_(clocks + kSharedClocks / 2), links_(links), rank_(rank), sent_(world) {
  for (int peer = 0; peer < world; ++peer) routes_.push_back(route(rank, peer));
}

std::vector<LinkPorts::Port> LinkPorts::route(int rank, int peer) const {
  const int both = links_.half_duplex ? 0 : 1;
  if (!links_.chain) return {{2 * rank, 0}, {2 * peer + both, nanoseconds(links_.lambda_s)}};
  std::vector<Port> ports;
  for (int i = std::min(rank, peer); i < std::max(rank, peer); ++i)
    ports.push_back({2 * i + (rank > peer ? both : 0), 0});
  return ports;
}

// Without a lock, for its holder might be killed: whoever finds that another rank was quicker gives back what
// it has and looks again. A rank killed on the way leaves ports busy for the length of its message.
uint64_t LinkPorts::take(int peer, size_t bytes, uint64_t now, SendProgress& progress) {
  const auto& ports = routes_[peer];
  const uint64_t length = nanoseconds(links_.alpha_s + static_cast<double>(bytes) * links_.beta_s);
  uint64_t seen[kSharedClocks / 2];
  while (true) {
    uint64_t start = progress.since;
    for (size_t i = 0; i < ports.size(); ++i) {
      seen[i] = clocks_[ports[i].clock].load(std::memory_order_acquire);
      start = std::max(start, seen[i] - std::min(seen[i], ports[i].later));
    }
    const uint64_t grace = std::min(kMostGrace, length / kGraceShare);
    const uint64_t when = start > now ? start : start + grace + (others_first(ports) ? grace : 0);
    for (size_t i = 0; i < ports.size(); ++i)
      want(ports[i].clock, when > now && (start <= now || seen[i] >= start + ports[i].later));
    if (when > now) return when;
    const uint64_t left = start + length;
    size_t taken = 0;
    auto swap = [&](size_t i, uint64_t from, uint64_t to) {
      return clocks_[ports[i].clock].compare_exchange_strong(from, to, std::memory_order_acq_rel);
    };
    while (taken < ports.size() && swap(taken, seen[taken], left + ports[taken].later)) ++taken;
    if (taken == ports.size()) {
      progress.left = left, progress.there = left + nanoseconds(links_.lambda_s) + jitter(peer);
      progress.ns_per_byte = links_.beta_s * 1e9;
      return 0;
    }
    while (taken-- > 0) swap(taken, left + ports[taken].later, seen[taken]);
  }
}

bool LinkPorts::others_first(const std::vector<Port>& ports) const {
  const uint64_t lower = (uint64_t{1} << rank_) - 1;
  return std::any_of(ports.begin(), ports.end(), [&](const Port& port) {
    return wanted_[port.clock].load(std::memory_order_acquire) & lower;
  });
}

void LinkPorts::want(int clock, bool wanted) {
  const uint64_t bit = uint64_t{1} << rank_;
  if (static_cast<bool>(wanted_[clock].load(std::memory_order_relaxed) & bit) == wanted) return;
  if (wanted)
    wanted_[clock].fetch_or(bit, std::memory_order_acq_rel);
  else
    wanted_[clock].fetch_and(~bit, std::memory_order_acq_rel);
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
