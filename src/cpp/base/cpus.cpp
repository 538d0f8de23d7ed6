#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "base/env.h"

namespace gpucomm {
namespace {

int quota_cpus() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0) return 1 << 20;  // "max", or no such file
  return std::max(1, static_cast<int>((quota + period - 1) / period));
}

struct Met {
  Met() : all(own_cpus()) { count = counted(); }
  int counted() const {
    int cpus = 0;
    for (const uint64_t word : all) cpus += std::popcount(word);
    return std::max(1, std::min(cpus, quota));
  }
  std::mutex mutex;  // guards all
  Cpus all;
  const int quota = quota_cpus();
  std::atomic<int> count;
};

// glibc tells that of the whole socket, of which a core of AMD's reaches one part.
size_t measured_cache() {
  if (env().llc_mib >= 0) return static_cast<size_t>(env().llc_mib) << 20;
  size_t last = 0, kib = 0;
  for (int i = 0;; ++i) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    if (!(file >> kib)) return last ? last : SIZE_MAX;
    last = kib << 10;
  }
}

Met& met() {
  static Met met;
  return met;
}

}  // namespace

Cpus own_cpus() {
  cpu_set_t set;
  Cpus own{1};  // one, where the kernel does not tell
  static_assert(sizeof set == sizeof own);
  if (!sched_getaffinity(0, sizeof set, &set)) std::memcpy(&own, &set, sizeof own);
  return own;
}

int usable_cpus() {
  static std::atomic<int>& count = met().count;
  return count.load(std::memory_order_relaxed);
}

void meet_cpus(const Cpus& theirs) {
  std::lock_guard lock(met().mutex);
  for (size_t i = 0; i < theirs.size(); ++i) met().all[i] |= theirs[i];
  met().count.store(met().counted(), std::memory_order_relaxed);
}

size_t last_level_cache() {
  static const size_t bytes = measured_cache();
  return bytes;
}

}  // namespace gpucomm
