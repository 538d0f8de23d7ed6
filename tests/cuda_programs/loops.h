// Programs run by loops over the lanes of a warp or a thread block, in order, or in another random order in
// each phase: what depends on the order gives other bits.
#pragma once
#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/residency.h"
#include "cuda/status.h"

namespace gpucomm::cuda {

template <unsigned kCount>
class LoopsOver {
 public:
  template <class T>
  struct Lanes {
    T values[kCount];
    T& operator[](unsigned lane) { return values[lane]; }
    const T& operator[](unsigned lane) const { return values[lane]; }
  };

  LoopsOver(size_t warp, size_t warps, unsigned seed)
      : warp_(warp), warps_(warps), random_(seed), shuffles_(seed) {
    std::iota(order_, order_ + kCount, 0u);
  }

  size_t warp() const { return warp_; }
  size_t warps() const { return warps_; }
  unsigned warp_in_block() const { return warp_ % kWarps; }

  template <class Call>
  void each(const Call& call) const {
    if (shuffles_) std::shuffle(order_, order_ + kCount, random_);
    for (const unsigned lane : order_) call(lane);
  }

  template <class Call>
  void each_together(const Call& call) const {
    each(call);
  }

  template <class Call>
  bool any(const Call& call) const {
    bool found = false;
    each([&](unsigned lane) { found |= call(lane); });
    return found;
  }

  template <class Call>
  uint32_t max(const Call& call) const {
    uint32_t most = 0;
    each([&](unsigned lane) { most = std::max<uint32_t>(most, call(lane)); });
    return most;
  }

  template <class T>
  T other(const Lanes<T>& values, unsigned lane, unsigned step) const {
    return values[lane ^ step];
  }

  void or_into(uint32_t& word, uint32_t bits) const { word |= bits; }
  void report(Status* status, Status fault) const { *status = std::max(*status, fault), ++reports; }

  inline static unsigned long long reports = 0;

 private:
  size_t warp_, warps_;
  mutable std::minstd_rand random_;
  mutable unsigned order_[kCount];
  bool shuffles_;
};

using Loops = LoopsOver<kLanes>;
using BlockLoops = LoopsOver<kThreads>;

}  // namespace gpucomm::cuda
