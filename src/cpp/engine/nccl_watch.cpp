#include "engine/nccl_watch.h"

#include "engine/fate.h"

namespace gpucomm {

void NcclWatch::check_peers(const std::vector<int>& peers) {
  constexpr std::chrono::milliseconds kLookEvery{50};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  control_.look();
  for (const int peer : peers) {
    const std::string why = peer == rank_ ? "" : control_.gone(peer);
    if (!why.empty() && why != kHasClosed)
      fail_lost(control_, peer, why, rank_, world_, "for what NCCL has enqueued");
  }
}

void NcclWatch::time_out(const std::string& device, double waited_s) const {
  fail(ErrorKind::timeout, "rank ", rank_, " of ", world_, " waited ", waited_s,
       " s for what NCCL has enqueued on ", device);
}

}  // namespace gpucomm
