#include "engine/device_calls.h"

#include <chrono>

#include "base/clock.h"
#include "base/env.h"
#include "engine/device_execution.h"
#include "engine/fate.h"
#include "engine/nccl_calls.h"
#include "engine/staged_calls.h"
#include "engine/stream_group.h"

namespace gpucomm {
namespace {

// The last of the threads to come enqueues for all.
class ThreadCalls : public DeviceCalls {
 public:
  ThreadCalls(std::shared_ptr<Transport> transport, std::shared_ptr<StreamGroup> group, int rank, int world)
      : transport_(std::move(transport)), group_(std::move(group)), rank_(rank), world_(world) {}

  void begin(const StreamCall& call) override {
    sequence_ = call.record.sequence;
    transport_->announce(call.record);
    const auto begun = Clock::now();
    if (const auto left = group_->come(rank_, call))
      fail_lost(*transport_, *left, kHasClosed, rank_, world_, "in " + describe(call.record));
    if (done()) enqueuing_s_ += std::chrono::duration<double>(Clock::now() - begun).count();
    for (int peer = 0; done() && peer < world_; ++peer)
      if (peer != rank_) transport_->wake(peer);
  }
  bool advance() override { return done(); }
  bool done() const override { return group_->enqueued(sequence_); }
  std::shared_ptr<OwnEvent> finished() const override { return group_->finished(rank_); }
  std::string coding_fault() const override { return group_->coding_fault(); }
  void leave() override { group_->leave(rank_); }

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<StreamGroup> group_;
  int rank_, world_;
  uint64_t sequence_ = 0;
};

}  // namespace

DeviceWish device_wish(Transport& transport, const std::string& name, int rank, int world) {
  const std::string& asked = env().device_transport;
  const bool chooses = asked == "auto";
  if (transport.emulates())
    fail(ErrorKind::unavailable, "calls on device arrays take no emulated links; transport '", name,
         "' makes some (rank ", rank, " of ", world, ")");
  const bool threads = transport.common(), shares = threads || transport.device_words();
  if (asked == "staged") return {DeviceWay::staged, false};
  if (asked == "nccl" || (chooses && !shares)) return {DeviceWay::nccl, chooses};
  if (!shares)
    fail(ErrorKind::unavailable, "GPUCOMM_DEVICE_TRANSPORT=arena needs ranks that share memory, at most ",
         kMostDeviceRanks, " processes of one machine; transport '", name, "' has others (rank ", rank,
         " of ", world, ")");
  return threads ? DeviceWish{DeviceWay::threads, false} : DeviceWish{DeviceWay::arenas, chooses};
}

std::unique_ptr<DeviceCalls> open_device_calls(DeviceWay way, std::shared_ptr<Transport> transport,
                                               NcclSource nccl, const std::vector<int>& nodes, int rank) {
  const int world = static_cast<int>(nodes.size());
  if (way == DeviceWay::nccl)
    return std::make_unique<NcclCalls>(std::move(transport), std::move(nccl), nodes, rank);
  if (way == DeviceWay::arenas) return std::make_unique<DeviceExecution>(std::move(transport), rank, world);
  if (way == DeviceWay::staged) return std::make_unique<StagedCalls>(std::move(transport), rank, world);
  Common* const common = transport->common();
  std::lock_guard lock(common->mutex);
  if (!common->value) common->value = std::make_shared<StreamGroup>(world);
  auto group = std::static_pointer_cast<StreamGroup>(common->value);
  return std::make_unique<ThreadCalls>(std::move(transport), std::move(group), rank, world);
}

}  // namespace gpucomm
