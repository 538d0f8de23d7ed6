#include "transports/link_ports.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>

#include "base/hash.h"

namespace gpucomm {
namespace {

constexpr int kBegan = kSharedClocks - 1;

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e9 + 0.5); }

// What the word holds from now on: ours, unless another rank was first.
uint64_t set_once(Clocks& word, uint64_t ours) {
  uint64_t found = 0;
  return word.compare_exchange_strong(found, ours) ? ours : found;
}

}  // namespace

LinkPorts::LinkPorts(Clocks* clocks, const EmulatedLinks& links, int rank, int world)
    : free_(clocks), links_(links), latency_(nanoseconds(links.lambda_s)), rank_(rank), sent_(world) {
  const uint64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  began_ = set_once(clocks[kBegan], links.began_ns ? links.began_ns : now);
}

LinkPorts::Route LinkPorts::route(int from, int to) const {
  const int both = links_.half_duplex ? 0 : 1;
  if (links_.chain && from < to) return {from, to, 2 * from, 2, to - from, 0};
  if (links_.chain) return {from, to, 2 * (from - 1) + both, -2, from - to, 0};
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

uint64_t LinkPorts::take(int peer, size_t bytes, uint64_t now, SendProgress& progress) {
  const Route way = route(rank_, peer);
  if (!way.count) {
    progress.left = progress.there = progress.comes;
    return 0;
  }
  while (progress.port < way.count) {
    if (progress.comes > now) return progress.comes;
    progress.left = pass(way, bytes, progress);
  }
  progress.there = progress.left + latency_ + jitter(peer);
  return 0;
}

// Takes the next port of a message's way and returns when the message has passed it.
uint64_t LinkPorts::pass(const Route& way, size_t bytes, SendProgress& progress) {
  std::atomic<uint64_t>& free = free_[way.first + progress.port * way.step];
  const uint64_t later = progress.port + 1 == way.count ? way.later : 0;
  uint64_t taken = free.load(std::memory_order_acquire), begin, left;
  do {
    begin = std::max(progress.comes, taken - std::min(taken, later));
    if (!progress.port) progress.ns_per_byte = beta(way, begin) * 1e9;
    left = begin + nanoseconds(links_.alpha_s + static_cast<double>(bytes) * progress.ns_per_byte * 1e-9);
  } while (!free.compare_exchange_weak(taken, left + later, std::memory_order_acq_rel));
  progress.comes = begin, ++progress.port;
  return left;
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
