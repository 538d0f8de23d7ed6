// What lies where in the memory of the mailboxes, besides the rings: the header and each rank's area.
#pragma once
#include <atomic>
#include <cstdint>
#include <tuple>

#include "base/cpus.h"
#include "transports/mailbox.h"

namespace gpucomm {

static_assert(kMostDeviceRanks >= kMaxWorld);
static_assert(kSharedClocks > 2 * kMaxWorld);

struct RegionHeader {
  uint64_t magic, world, heap_bytes;
  std::atomic<uint32_t> full_fences;  // 1: some rank lacks the asymmetric fence
  // 0: none; twice (1 + the rank that found it), and 1 more once readable.
  std::atomic<uint32_t> poison_state;
  uint32_t poison_kind;
  char poison_text[1500];
  std::atomic<uint64_t> agreed;
  Census census;
  Clocks clocks[kSharedClocks];
  DeviceWords device_words;
};

struct RankArea {
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<uint64_t> arrived;
  std::atomic<uint64_t> completed;
  std::atomic<uint32_t> left, maps_heaps;  // maps_heaps: it can read what others lend
  std::atomic<int64_t> pid, started;
  std::atomic<uint64_t> clock;                   // as Birth
  std::atomic<uint64_t> cookie, cookie_address;  // of its private memory
  std::atomic<uint64_t> reads, tried;            // of which ranks it can read the private memory; has tried
  std::atomic<uint64_t> cpus[std::tuple_size_v<Cpus>];
  std::atomic<uint32_t> told_cpus;
  alignas(64) std::atomic<uint64_t> records[kRememberedCalls][CallRecord::kWords];
  // As Refusal; the sequence is written last.
  std::atomic<uint64_t> refused, refused_times, refused_since_ns, refused_text[Refusal::kMost / 8];
};

inline constexpr uint64_t kMagic = 0x67707563'6d626f78;  // "gpucmbox"

}  // namespace gpucomm
