// Messages of device arrays through page-locked memory of the hosts: behind a message's header its elements
// follow, part by part, on the same channel.
#pragma once
#include <map>
#include <memory>
#include <utility>

#include "engine/device_messages.h"
#include "engine/device_share.h"

namespace gpucomm {

class StagedMessages : public DeviceMessages {
 public:
  StagedMessages(std::shared_ptr<Transport> transport, int rank, int world)
      : transport_(std::move(transport)), rank_(rank), world_(world) {}
  ~StagedMessages() override;

  Stream stream_for(const Message& message) override;
  // True once all of it is sent: the next header comes behind it.
  bool send(Message& message, Stream stream) override;
  bool receive(Message& message, Stream stream) override;
  bool counted() const override { return true; }
  bool silent(const Message&) override { return share_->links->silent(); }
  void leave() override;

 private:
  const Chunk* next(const Message& message);

  std::shared_ptr<Transport> transport_;
  int rank_, world_;
  std::unique_ptr<DeviceShare> share_;              // from the first message on
  std::map<std::pair<int, bool>, size_t> streams_;  // by peer and direction: which of the share's
  bool left_ = false;
};

}  // namespace gpucomm
