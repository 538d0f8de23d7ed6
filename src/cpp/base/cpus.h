// The CPUs that the ranks of this node may use, and their cache.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace gpucomm {

// As bits, as the kernel numbers them.
using Cpus = std::array<uint64_t, 16>;

// Those of this process: its affinity mask.
Cpus own_cpus();

// How many this process and the ranks may use that it has met; at most the cgroup's quota (rounded up). Where
// a launcher binds each rank to a core, that core is all that a process sees of itself.
int usable_cpus();
void meet_cpus(const Cpus& theirs);

// Bytes of the last-level cache, as the kernel or GPUCOMM_LLC_MIB tells; where neither does, as if it held
// everything.
size_t last_level_cache();

}  // namespace gpucomm
