// Messages of device arrays between processes: chunk by chunk through arenas of their own, apart from those
// of the collectives.
#pragma once
#include <map>

#include "engine/device_messages.h"
#include "engine/device_share.h"

namespace gpucomm {

class ArenaMessages : public DeviceMessages {
 public:
  ArenaMessages(std::shared_ptr<Transport> transport, int rank, int world)
      : transport_(std::move(transport)), rank_(rank), world_(world) {}
  ~ArenaMessages() override;

  Stream stream_for(const Message& message) override;
  bool send(Message& message, Stream stream) override;
  bool receive(Message& message, Stream stream) override;
  void leave() override;
  void settle() override;

 private:
  SharedArena& arena() { return *share_->arena; }
  size_t chunk_of(const Message& message);

  std::shared_ptr<Transport> transport_;
  int rank_, world_;
  std::unique_ptr<DeviceShare> share_;              // from the first message on
  std::map<std::pair<int, bool>, size_t> streams_;  // by peer and direction: which of the share's
  bool left_ = false;
};

}  // namespace gpucomm
