#include "base/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/error.h"

namespace gpucomm {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;

uint64_t plus(uint64_t a, uint64_t b) { return a > kUnlimited - b ? kUnlimited : a + b; }
uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// Of a file with one number; none where it says "max".
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// The sum of the numbers behind these words in a file; none where it has none of them.
std::optional<uint64_t> sum_in(const std::string& path, std::initializer_list<std::string_view> words) {
  std::ifstream file(path);
  std::optional<uint64_t> sum;
  uint64_t number = 0;
  for (std::string word; file >> word;)
    if (std::find(words.begin(), words.end(), word) != words.end() && file >> number)
      sum = plus(sum.value_or(0), number);
  return sum;
}

bool lists(const std::string& list, std::string_view name) {
  return concat(",", list, ",").find(concat(",", name, ",")) != std::string::npos;
}

// Of the mounted hierarchy that limits memory: which part of it is seen, and where.
struct CgroupMount {
  std::string seen, folder;
};

// A line of mountinfo; fields of no fixed number end with a "-".
std::optional<CgroupMount> mount_of(const std::string& line, bool unified) {
  std::istringstream fields(line);
  std::string skipped, type, options;
  CgroupMount mount;
  fields >> skipped >> skipped >> skipped >> mount.seen >> mount.folder;
  while (fields >> skipped && skipped != "-") {
  }
  fields >> type >> skipped >> options;
  const bool right = unified ? type == "cgroup2" : type == "cgroup" && lists(options, "memory");
  return right ? std::optional(mount) : std::nullopt;
}

// What may be swapped out; version 1 limits the sum of memory and swap.
uint64_t swap_left(const std::string& folder, bool unified, uint64_t memory_left) {
  const auto most = number_in(folder + (unified ? "/memory.swap.max" : "/memory.memsw.limit_in_bytes"));
  const auto used = number_in(folder + (unified ? "/memory.swap.current" : "/memory.memsw.usage_in_bytes"));
  if (!most || !used) return kUnlimited;
  return minus(minus(*most, *used), unified ? 0 : memory_left);
}

}  // namespace

MemoryLimits::MemoryLimits(const std::string& root) : root_(root) {
  std::ifstream file(root_ + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // 4:memory:/path or, of version 2, 0::/path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (names.empty() || lists(names, "memory")) add_cgroup(line.substr(second + 1), names.empty());
  }
}

void MemoryLimits::add_cgroup(const std::string& path, bool unified) {
  std::ifstream file(root_ + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto mount = mount_of(line, unified);
    if (!mount) continue;
    const std::string seen = mount->seen == "/" ? "" : mount->seen;
    if (!(path + "/").starts_with(seen + "/")) continue;  // another part of the tree
    std::string below = path.substr(seen.size());
    for (; below.size() > 1; below.resize(below.rfind('/')))
      cgroups_.push_back({root_ + mount->folder + below, unified});
    cgroups_.push_back({root_ + mount->folder, unified});
  }
}

uint64_t MemoryLimits::free_swap() const {
  return sum_in(root_ + "/proc/meminfo", {"SwapFree:"}).value_or(0) << 10;
}

// What ZFS would give back, which the kernel does not count as available; lines are name, type, number.
uint64_t MemoryLimits::zfs_cache() const {
  std::ifstream file(root_ + "/proc/spl/kstat/zfs/arcstats");
  uint64_t size = 0, least = 0, number = 0;
  std::string name, type;
  for (std::string line; std::getline(file, line);) {
    if (!(std::istringstream(line) >> name >> type >> number)) continue;
    if (name == "size") size = number;
    if (name == "c_min") least = number;
  }
  return minus(size, least);
}

uint64_t MemoryLimits::on_machine(uint64_t enough) const {
  const auto kib = sum_in(root_ + "/proc/meminfo", {"MemAvailable:"});
  if (!kib) return kUnlimited;
  return *kib << 10 >= enough ? *kib << 10 : plus(*kib << 10, plus(free_swap(), zfs_cache()));
}

// Most often there is no limit, or what is not in use is enough: then no more is read.
uint64_t MemoryLimits::left_in(const Cgroup& cgroup, uint64_t enough) const {
  const auto& [folder, unified] = cgroup;
  const auto most = number_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!most) return kUnlimited;
  const auto used = number_in(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!used) return kUnlimited;
  const uint64_t unused = minus(*most, *used);
  if (unused >= enough) return unused;
  // Without shared memory, which the kernel's "cache" has too. Version 1 counts the cgroups inside apart.
  const auto cached =
      unified ? sum_in(folder + "/memory.stat", {"active_file", "inactive_file", "slab_reclaimable"})
              : sum_in(folder + "/memory.stat", {"total_active_file", "total_inactive_file"});
  if (!cached) return kUnlimited;
  return plus(plus(unused, *cached), std::min(free_swap(), swap_left(folder, unified, unused)));
}

MemoryLimits::Room MemoryLimits::room(uint64_t enough) const {
  Room least{on_machine(enough), "/proc/meminfo"};
  for (const Cgroup& cgroup : cgroups_)
    if (const uint64_t left = left_in(cgroup, enough); left < least.bytes)
      least = {left, concat("cgroup ", cgroup.folder.substr(root_.size()))};
  return least;
}

uint64_t MemoryLimits::most() const {
  uint64_t most = kUnlimited;
  for (const auto& [folder, unified] : cgroups_)
    most = std::min(
        most, number_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes")).value_or(kUnlimited));
  return most;
}

const MemoryLimits& memory_limits() {
  static const MemoryLimits limits;
  return limits;
}

}  // namespace gpucomm
