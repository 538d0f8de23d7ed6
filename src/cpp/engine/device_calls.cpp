#include "engine/device_calls.h"

#include "engine/device_execution.h"
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
    group_->come(rank_, call);
    for (int peer = 0; done() && peer < world_; ++peer)
      if (peer != rank_) transport_->wake(peer);
  }
  bool advance() override { return done(); }
  bool done() const override { return group_->enqueued(sequence_); }
  void leave() override { group_->leave(); }

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<StreamGroup> group_;
  int rank_, world_;
  uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<DeviceCalls> open_device_calls(std::shared_ptr<Transport> transport, const std::string& name,
                                               int rank, int world) {
  if (Common* common = transport->common()) {
    std::lock_guard lock(common->mutex);
    if (!common->value) common->value = std::make_shared<StreamGroup>(world);
    auto group = std::static_pointer_cast<StreamGroup>(common->value);
    return std::make_unique<ThreadCalls>(std::move(transport), std::move(group), rank, world);
  }
  if (!transport->device_words())
    fail(ErrorKind::unavailable, "collectives on device arrays need ranks that share memory, as threads of ",
         "one process or as processes of one machine, and no emulated links; transport '", name,
         "' has others (rank ", rank, " of ", world, ")");
  return std::make_unique<DeviceExecution>(std::move(transport), rank, world);
}

}  // namespace gpucomm
