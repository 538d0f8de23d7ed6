// Another process's private memory (cross-memory attach).
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "base/clock.h"

namespace gpucomm {

// Where a process may be read by its ancestors alone (Yama's ptrace_scope 1): by the descendants of its
// parent too, which are the ranks that one launcher started.
void let_siblings_read();

// Copies from process `pid`; 0, or the errno of why it could not.
int read_process(int64_t pid, uint64_t address, void* to, size_t bytes);

// Copies all of it to where `target` says at the kernel's first look, which others see behind what the caller
// has stored before; false: it was not, or not all.
bool write_process(int64_t pid, uint64_t address, size_t bytes, const iovec& target);

// How fast the kernel reads a process's memory on small pages, of which it looks every one up, and how fast a
// copy is, in bytes a second: the best of a few tries, once.
struct ReadSpeed {
  double read = 0, copy = 0;  // read 0: it refuses
  // Staging is two copies, one of them out of another core's cache: three times as long as this one.
  bool quick() const { return 3 * read >= copy; }
};
const ReadSpeed& small_page_speed();

// Which memory of this process the kernel lets others copy: not secret memory, nor that of devices.
class Copyable {
 public:
  // By its ends, once for an array that ends there.
  bool is(const void* data, size_t bytes);

 private:
  static constexpr size_t kRemembered = 1024;
  std::unordered_set<const void*> seen_;  // ends of arrays that are
};

// Which memory of this process is on huge pages: these are mostly quicker to read from outside than to stage.
class HugePages {
 public:
  bool hold(const void* data, size_t bytes);

 private:
  struct Mapping {
    uintptr_t begin, end;
    bool huge;
  };
  const Mapping* find(uintptr_t address) const;
  void read();

  std::vector<Mapping> mappings_;
  unsigned lookups_ = 0;
  Clock::time_point next_read_{};
};

}  // namespace gpucomm
