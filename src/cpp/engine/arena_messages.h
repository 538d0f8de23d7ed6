// Messages of device arrays between processes: chunk by chunk through arenas of their own, apart from those
// of the collectives.
#pragma once
#include <atomic>

#include "engine/device_messages.h"
#include "engine/message_streams.h"

namespace gpucomm {

class ArenaMessages : public DeviceMessages {
 public:
  ArenaMessages(std::shared_ptr<Transport> transport, const Fate& fate)
      : transport_(std::move(transport)),
        rank_(fate.rank()),
        world_(fate.world()),
        streams_(rank_, world_, "between processes"),
        watch_(fate.control(), rank_, world_, kPeersEnqueued) {}
  ~ArenaMessages() override;

  Stream stream_for(const Message& message) override;
  bool send(Message& message, Stream stream) override;
  bool receive(Message& message, Stream stream) override;
  void leave() override { streams_.wait_for_end(); }
  std::optional<Error> settle() override;
  bool watched() const override { return streams_ && !settled_; }
  void check(bool done, std::optional<Seconds> waited) override;

 private:
  SharedArena& arena() { return *streams_->arena; }
  size_t chunk_of(const Message& message);

  std::shared_ptr<Transport> transport_;
  int rank_, world_;
  MessageStreams streams_;
  EnqueuedWatch watch_;
  std::atomic<bool> settled_{false};
};

}  // namespace gpucomm
