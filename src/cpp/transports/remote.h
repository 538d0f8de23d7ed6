// Reading another process's private memory (cross-memory attach).
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpucomm {

// Copies from process `pid`; "" or why it could not.
std::string read_process(int64_t pid, uint64_t address, void* to, size_t bytes);

// Which memory of this process is on huge pages. Only that is quicker to read from outside than to stage: the
// kernel looks every page up.
class HugePages {
 public:
  bool hold(const void* data, size_t bytes);

 private:
  struct Mapping {
    uintptr_t begin, end;
    bool huge;
  };
  using Clock = std::chrono::steady_clock;
  const Mapping* find(uintptr_t address) const;
  void read();

  std::vector<Mapping> mappings_;
  int lookups_ = 0;
  Clock::time_point next_read_{};
};

}  // namespace gpucomm
