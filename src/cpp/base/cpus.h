// How many CPUs this process may use.
#pragma once

namespace gpucomm {

// The lesser of the affinity mask and the cgroup's quota (rounded up); read once.
int usable_cpus();

}  // namespace gpucomm
