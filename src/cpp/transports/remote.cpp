#include "transports/remote.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/aligned.h"

namespace gpucomm {

void let_siblings_read() {
  const pid_t launcher = getppid();
  const bool everybody = launcher <= 1;  // descends from this one
  if (std::ifstream("/proc/sys/kernel/yama/ptrace_scope").get() == '1' && !everybody)
    prctl(PR_SET_PTRACER, launcher, 0, 0, 0);
}

int read_process(int64_t pid, uint64_t address, void* to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const iovec local{static_cast<std::byte*>(to) + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t n = process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0);
    if (n <= 0) return n ? errno : ENODATA;
    done += static_cast<size_t>(n);
  }
  return 0;
}

bool write_process(int64_t pid, uint64_t address, size_t bytes, const iovec& target) {
  const iovec local{reinterpret_cast<void*>(address), bytes};
  // The kernel's look is a plain load: on ARM it could come before the caller's stores.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return process_vm_writev(static_cast<pid_t>(pid), &local, 1, &target, 1, 0) == static_cast<ssize_t>(bytes);
}

// This process reads itself.
static ReadSpeed measure() {
  constexpr size_t kBytes = 128 << 10, kPage = 4 << 10;
  constexpr int kTries = 20;  // the first few find caches cold
  const auto from = allocate_aligned(kPage, kBytes), to = allocate_aligned(kPage, kBytes);
  if (!from || !to) return {};
  std::memset(from.get(), 1, kBytes);
  auto fastest = [&](auto&& copy) {
    double seconds = 1;
    for (int i = 0; i < kTries; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (!copy()) return 0.0;
      seconds =
          std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return kBytes / seconds;
  };
  const auto address = reinterpret_cast<uint64_t>(from.get());
  return {fastest([&] { return read_process(getpid(), address, to.get(), kBytes) == 0; }),
          fastest([&] { return std::memcpy(to.get(), from.get(), kBytes) != nullptr; })};
}

const ReadSpeed& small_page_speed() {
  static const ReadSpeed speed = measure();
  return speed;
}

bool Copyable::is(const void* data, size_t bytes) {
  const auto* const last = static_cast<const std::byte*>(data) + bytes - 1;
  const auto readable = [](const void* at) {
    std::byte copy;
    return read_process(getpid(), reinterpret_cast<uint64_t>(at), &copy, 1) == 0;
  };
  if (seen_.contains(last)) return true;
  if (!readable(data) || !readable(last)) return false;
  if (seen_.size() == kRemembered) seen_.clear();
  return seen_.insert(last).second;
}

// By its middle: an allocator may have asked for huge pages for all but the ends. Asked again for addresses
// that are new, and now and then, as one may get other pages; a wrong answer costs only time. Reading takes a
// millisecond or more, so it may not take more than a hundredth of the time.
bool HugePages::hold(const void* data, size_t bytes) {
  constexpr int kLookups = 4096;
  const auto middle = reinterpret_cast<uintptr_t>(data) + bytes / 2;
  const Mapping* mapping = lookups_++ % kLookups ? find(middle) : nullptr;
  if (!mapping && Clock::now() >= next_read_) {
    const auto begin = Clock::now();
    read();
    next_read_ = Clock::now() + 100 * (Clock::now() - begin);
    mapping = find(middle);
  }
  return mapping && mapping->huge;
}

const HugePages::Mapping* HugePages::find(uintptr_t address) const {
  for (const Mapping& m : mappings_)
    if (m.begin <= address && address < m.end) return &m;
  return nullptr;
}

void HugePages::read() {
  mappings_.clear();
  std::ifstream file("/proc/self/smaps");
  size_t resident = 0, huge = 0;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin, end;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) mappings_.push_back({begin, end, false});
    std::sscanf(line.c_str(), "Rss: %zu", &resident);
    if (std::sscanf(line.c_str(), "AnonHugePages: %zu", &huge) == 1 && !mappings_.empty())
      mappings_.back().huge = huge && 2 * huge >= resident;
  }
}

}  // namespace gpucomm
