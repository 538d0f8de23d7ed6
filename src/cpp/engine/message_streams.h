// What a rank that is a process has on its device for messages: a stream for each peer and direction, and
// what they pass through.
#pragma once
#include <map>
#include <memory>
#include <utility>

#include "engine/device_share.h"
#include "engine/message.h"

namespace gpucomm {

class MessageStreams {
 public:
  // `where`: "between processes", "over NCCL".
  MessageStreams(int rank, int world, const char* where) : rank_(rank), world_(world), where_(where) {}
  ~MessageStreams();

  // Of the message's queue. With the first one `open` adds to the share what messages pass through.
  template <class Open>
  Stream of(const Message& message, Open open) {
    if (!share_) {
      auto share = std::make_unique<DeviceShare>(message.device);
      open(*share);
      share_ = std::move(share);
    }
    return stream(message);
  }

  // Whether there was a message.
  explicit operator bool() const { return share_ != nullptr; }
  DeviceShare* operator->() const { return share_.get(); }
  // As the share's; once.
  void wait_for_end();

 private:
  Stream stream(const Message& message);

  int rank_, world_;
  const char* where_;
  std::unique_ptr<DeviceShare> share_;
  std::map<std::pair<int, bool>, size_t> streams_;  // by peer and direction: which of the share's
  bool waited_ = false;
};

}  // namespace gpucomm
