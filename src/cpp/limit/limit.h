// What a node's memory allows: collectives of processes as plain loops over shared memory, without what a
// library needs (choices, matching, other ranks' faults). The yardstick of `gpucomm bench`.
// float32, sum, in place, root 0.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/aligned.h"

namespace gpucomm {

// How private arrays get to other processes: through slots in shared memory, with a copy at each end, or read
// and written where they lie (cross-memory attach).
enum class LimitWay { staged, attach };

class Limit {
 public:
  static size_t region_bytes(int world);

  // `region`: zeroed memory that all ranks map.
  Limit(std::byte* region, int rank, int world, double timeout_s);

  // A call on this array. All ranks must ask for the same calls, and make them, in the same order. Throws
  // timeout where a rank waits for longer, unavailable where the kernel refuses.
  std::function<void()> call(const std::string& collective, LimitWay way, float* x, size_t count);

 private:
  static constexpr size_t kChunk = (256 << 10) / sizeof(float);  // stays in a core's cache
  struct alignas(128) Peer {
    std::atomic<uint64_t> steps, array;
    std::atomic<int64_t> pid;
  };
  struct Run {  // of the elements of an array
    size_t begin, count;
  };
  Peer& peer(int rank) const;
  void barrier();
  float* slot(int rank) const;
  Run share(size_t count, int rank) const;
  template <class Chunk>
  void by_chunks(size_t count, Chunk&& chunk);
  template <class Other>
  void for_others(Other&& other) const {
    for (int rank = 0; rank < world_; ++rank)
      if (rank != rank_) other(rank);
  }
  void fold_slots(float* own, size_t at, size_t count, bool answer) const;

  std::function<void()> staged(const std::string& collective, float* x, size_t count);
  std::function<void()> attached(const std::string& collective, float* x, size_t count);
  void exchange_small(float* x, size_t count);
  void all_reduce(float* x, size_t count);
  void to_each(float* x, size_t each);
  void from_each(float* x, size_t each);
  void from_root(float* x, size_t count);
  void to_root(float* x, size_t count);
  void fetch(int rank, const float* from, float* to, size_t count) const;
  void answer_to(int rank, const float* from, float* to, size_t count) const;
  void fold_pieces(float* x, Run run, const std::vector<float*>& arrays, bool answer) const;

  std::byte* region_;
  int rank_, world_;
  std::chrono::duration<double> timeout_;
  bool crowded_;         // more ranks than CPUs
  uint64_t steps_ = 0;   // barriers so far
  uint64_t chunks_ = 0;  // the slots go round
  Aligned piece_;
};

}  // namespace gpucomm
