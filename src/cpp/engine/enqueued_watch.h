// Who waits for what is enqueued and needs other processes looks after these himself: no device notices that
// one is gone, and NCCL not always.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "base/soon.h"
#include "engine/drivable.h"

namespace gpucomm {

// How long who closes waits for its own work, which may be late behind other work, and then for NCCL.
inline constexpr std::chrono::milliseconds kOwnWork{30'000}, kNcclFarewell{2000};
inline constexpr const char* kNcclEnqueued = "what NCCL has enqueued";
inline constexpr const char* kPeersEnqueued = "what other ranks have enqueued";

class EnqueuedWatch {
 public:
  // `control`: carries the poison. `what`: is waited for.
  EnqueuedWatch(Transport& control, int rank, int world, const char* what)
      : control_(control), rank_(rank), world_(world), what_(what) {}
  // For another thread: it looks at times of its own.
  EnqueuedWatch another() const { return {control_, rank_, world_, what_}; }
  // Throws peer_lost where one of these ranks is gone; looks now and then only. Who has closed its
  // communicator was through with its own part.
  void check_peers(const std::vector<int>& peers);
  void check_everybody();
  // Throws that this rank has waited so long in vain.
  [[noreturn]] void time_out(const std::string& device, Seconds waited) const;

 private:
  bool its_time();
  void check_peer(int peer);

  Transport& control_;
  int rank_, world_;
  const char* what_;
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace gpucomm
