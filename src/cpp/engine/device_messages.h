// How messages between two ranks go whose arrays are on devices. Nothing here blocks but `leave` and
// `settle`; what is enqueued on a message's stream comes behind what its caller's stream holds.
#pragma once
#include <memory>

#include "engine/device_calls.h"
#include "engine/fate.h"
#include "engine/message.h"

namespace gpucomm {

class DeviceMessages : public Enqueued {
 public:
  // Of its queue: messages of one pair and direction go in their order.
  virtual Stream stream_for(const Message& message) = 0;
  // Before the header of a message leaves, again until it has: may write a note that goes with it.
  virtual void offer(Message&) {}
  // One attempt to enqueue the rest of a message whose header is through; true: all of it is.
  virtual bool send(Message& message, Stream stream) = 0;
  virtual bool receive(Message& message, Stream stream) = 0;
  // As Drivable::silent, of a message whose header is through.
  virtual Silent silent(const Message&) { return Silent::nothing; }
  // A message that ends by a fault: no array of its is touched from here on, but by what is enqueued.
  virtual void withdraw(Message&) {}
  // Whether the transport counts their bytes.
  virtual bool counted() const { return false; }
  void leave() override {}
};

// `nccl`: where that is the way.
std::unique_ptr<DeviceMessages> open_device_messages(DeviceWay way, std::shared_ptr<Transport> transport,
                                                     NcclSource nccl, const Fate& fate);

}  // namespace gpucomm
