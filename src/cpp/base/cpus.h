// How many CPUs the ranks of this node may use.
#pragma once
#include <array>
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

}  // namespace gpucomm
