#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

namespace gpucomm {

static int quota_cpus() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0) return 1 << 20;  // "max", or no such file
  return std::max(1, static_cast<int>((quota + period - 1) / period));
}

static int count_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) return 1;
  return std::max(1, std::min(CPU_COUNT(&set), quota_cpus()));
}

int usable_cpus() {
  static const int cpus = count_cpus();
  return cpus;
}

}  // namespace gpucomm
