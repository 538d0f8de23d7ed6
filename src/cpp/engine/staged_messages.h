// Messages of device arrays through page-locked memory of the hosts: behind a message's header its elements
// follow, part by part, on the same channel.
#pragma once
#include <memory>
#include <utility>

#include "engine/device_messages.h"
#include "engine/message_streams.h"

namespace gpucomm {

class StagedMessages : public DeviceMessages {
 public:
  StagedMessages(std::shared_ptr<Transport> transport, int rank, int world)
      : transport_(std::move(transport)),
        rank_(rank),
        world_(world),
        streams_(rank, world, "between processes") {}

  Stream stream_for(const Message& message) override;
  // True once all of it is sent: the next header comes behind it.
  bool send(Message& message, Stream stream) override;
  bool receive(Message& message, Stream stream) override;
  bool counted() const override { return true; }
  Silent silent(const Message&) override {
    return streams_->links->late() ? Silent::own_device : Silent::nothing;
  }
  void leave() override { streams_.wait_for_end(); }

 private:
  const Chunk* next(const Message& message);

  std::shared_ptr<Transport> transport_;
  int rank_, world_;
  MessageStreams streams_;
};

}  // namespace gpucomm
