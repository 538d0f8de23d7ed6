#include "transports/regions.h"

#include <unistd.h>

#include <algorithm>

#include "base/env.h"
#include "base/memory_limits.h"
#include "base/pages.h"

namespace gpucomm {

constexpr size_t kGrain = 2 << 20;  // a huge page

// What the machine has, shared out, or what this cgroup may have, not shared out: each rank may have its own.
// It is only addresses: memory is taken as arrays are made.
static size_t default_heap_bytes(int world) {
  if (env().heap_mib >= 0) return static_cast<size_t>(env().heap_mib) << 20;
  const size_t share = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes() / world;
  return std::min<size_t>(share, memory_limits().most());
}

std::vector<size_t> heap_sizes(int world, std::optional<size_t> wish) {
  std::vector<size_t> sizes;
  for (size_t bytes = wish.value_or(default_heap_bytes(world)) / kGrain * kGrain; bytes;
       bytes = bytes / 2 / kGrain * kGrain)
    sizes.push_back(bytes);
  sizes.push_back(0);
  return sizes;
}

}  // namespace gpucomm
