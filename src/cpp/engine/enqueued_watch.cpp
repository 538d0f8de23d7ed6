#include "engine/enqueued_watch.h"

#include "engine/fate.h"

namespace gpucomm {

void EnqueuedWatch::check_peers(const std::vector<int>& peers) {
  if (!its_time()) return;
  for (const int peer : peers) check_peer(peer);
}

void EnqueuedWatch::check_everybody() {
  if (!its_time()) return;
  for (int peer = 0; peer < world_; ++peer) check_peer(peer);
}

bool EnqueuedWatch::its_time() {
  constexpr std::chrono::milliseconds kLookEvery{50};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kLookEvery;
  control_.look();
  return true;
}

void EnqueuedWatch::check_peer(int peer) {
  const std::string why = peer == rank_ ? "" : control_.gone(peer);
  if (!why.empty() && why != kHasClosed) fail_lost(control_, peer, why, rank_, world_, concat("for ", what_));
}

void EnqueuedWatch::time_out(const std::string& device, Seconds waited) const {
  fail(ErrorKind::timeout, "rank ", rank_, " of ", world_, " waited ", waited.count(), " s for ", what_,
       " on ", device, stopped_ranks(control_, world_, rank_));
}

}  // namespace gpucomm
