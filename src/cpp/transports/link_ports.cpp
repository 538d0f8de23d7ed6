#include "transports/link_ports.h"

#include <algorithm>
#include <bit>

#include "base/clock.h"
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
    : free_(clocks), links_(links), rank_(rank), sent_(world) {
  began_ = set_once(clocks[kBegan], links.began_ns ? links.began_ns : steady_ns());
}

LinkPorts::Route LinkPorts::route(int from, int to) const {
  const int both = links_.half_duplex ? 0 : 1;
  if (links_.chain && from < to) return {from, to, 2 * from, 2, to - from, false};
  if (links_.chain) return {from, to, 2 * (from - 1) + both, -2, from - to, false};
  const int a = links_.nodes[from], b = links_.nodes[to];
  return {a, b, 2 * a, 2 * (b - a) + both, a == b ? 0 : 2, true};
}

int LinkPorts::phase(uint64_t at) const {
  const double passed = at > began_ ? static_cast<double>(at - began_) * 1e-9 : 0;
  auto now = links_.phases.begin();
  while (now + 1 != links_.phases.end() && now[1].from_s <= passed) ++now;
  return static_cast<int>(now - links_.phases.begin());
}

// Of the slowest part of the way.
double LinkPorts::beta(const Route& route, int phase) const {
  const std::vector<double>& betas = links_.phases[phase].betas;
  const auto [low, high] = std::minmax(route.from, route.to);
  if (!links_.chain) return std::max(betas[low], betas[high]);
  return *std::max_element(betas.begin() + low, betas.begin() + high);
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
  progress.there =
      progress.left + nanoseconds(links_.phases[progress.phase].lambda_s) + jitter(peer, progress.phase);
  return 0;
}

// Takes the next port of a message's way and returns when the message has passed it.
uint64_t LinkPorts::pass(const Route& way, size_t bytes, SendProgress& progress) {
  std::atomic<uint64_t>& free = free_[way.first + progress.port * way.step];
  const bool receives = way.receives && progress.port + 1 == way.count;
  const uint64_t later = receives ? nanoseconds(links_.phases[progress.phase].lambda_s) : 0;
  uint64_t taken = free.load(std::memory_order_acquire), begin, left;
  do {
    begin = std::max(progress.comes, taken - std::min(taken, later));
    if (!progress.port) {
      progress.phase = phase(begin);
      progress.ns_per_byte = beta(way, progress.phase) * 1e9;
    }
    const double alpha_s = links_.phases[progress.phase].alpha_s;
    left = begin + nanoseconds(alpha_s + static_cast<double>(bytes) * progress.ns_per_byte * 1e-9);
  } while (!free.compare_exchange_weak(taken, left + later, std::memory_order_acq_rel));
  progress.comes = begin, ++progress.port;
  return left;
}

// The same for the same message of every run.
uint64_t LinkPorts::jitter(int peer, int phase) {
  const uint64_t hash = mix(mix(mix(links_.seed, rank_), peer), sent_[peer]++);
  return nanoseconds(links_.phases[phase].jitter_s * static_cast<double>(hash >> 11) * 0x1p-53);
}

uint64_t began(const Clocks* clocks) { return clocks[kBegan].load(); }

uint64_t fingerprint(const EmulatedLinks& links) {
  uint64_t hash = mix(links.seed, links.chain + 2 * links.half_duplex);
  auto add = [&](double value) { hash = mix(hash, std::bit_cast<uint64_t>(value)); };
  for (int node : links.nodes) hash = mix(hash, node);
  for (const auto& phase : links.phases) {
    for (double value : {phase.from_s, phase.alpha_s, phase.lambda_s, phase.jitter_s}) add(value);
    for (double value : phase.betas) add(value);
  }
  return hash | 1;
}

}  // namespace gpucomm
