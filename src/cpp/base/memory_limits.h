// How much memory the machine, and the cgroups that this process is in, still have for it. A container's
// limit is one of a cgroup; beyond it the kernel refuses nothing, it ends a process.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gpucomm {

class MemoryLimits {
 public:
  // `root`: where the kernel's files lie, in tests elsewhere. What cannot be read there limits nothing.
  explicit MemoryLimits(const std::string& root = "");
  struct Room {
    uint64_t bytes;
    std::string told_by;  // who has so little
  };
  // What is left; of that it is only found out whether it is `enough`. The page cache counts as free, and so
  // does swap space: better to try in vain than to refuse what there is.
  Room room(uint64_t enough) const;
  // What the cgroups may have in all.
  uint64_t most() const;

 private:
  struct Cgroup {
    std::string folder;
    bool unified;  // version 2
  };
  void add_cgroup(const std::string& path, bool unified);
  uint64_t on_machine(uint64_t enough) const;
  uint64_t left_in(const Cgroup& cgroup, uint64_t enough) const;
  uint64_t free_swap() const;
  uint64_t zfs_cache() const;

  std::string root_;
  std::vector<Cgroup> cgroups_;  // of this process, and their parents
};

// Those of this process; its cgroups are looked up once.
const MemoryLimits& memory_limits();

}  // namespace gpucomm
