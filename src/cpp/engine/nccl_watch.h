// What who waits for NCCL looks after himself: ranks that are gone, which NCCL does not always notice, and
// ends that must come soon.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/soon.h"
#include "transports/transport.h"

namespace gpucomm {

// How long who closes waits for its own work, and then for NCCL.
inline constexpr std::chrono::milliseconds kNcclFarewell{2000};

class NcclWatch {
 public:
  // `control`: carries the poison.
  NcclWatch(Transport& control, int rank, int world) : control_(control), rank_(rank), world_(world) {}
  // Throws peer_lost where one of them is gone; looks now and then only. Who has closed its communicator was
  // through with its own part.
  void check_peers(const std::vector<int>& peers);
  // Throws that this rank has waited so long in vain.
  [[noreturn]] void time_out(const std::string& device, double waited_s) const;

 private:
  Transport& control_;
  int rank_, world_;
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace gpucomm
