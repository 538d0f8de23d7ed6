// Messages of device arrays between threads: the sender offers its array, the receiver copies straight out of
// it, and tells by an event when it has been read.
#pragma once
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/soon.h"
#include "engine/device_messages.h"

namespace gpucomm {

struct Offer {
  std::mutex mutex;  // guards all below
  const std::byte* data;
  std::shared_ptr<Device> device;
  std::shared_ptr<OwnEvent> ready;  // what the sender's stream held
  OwnEvent read;                    // ... by the receiver, once it is taken
  bool taken = false, withdrawn = false;
};

// Of all ranks: what each has offered to each, in the order of their headers.
class Offers {
 public:
  explicit Offers(int world) : world_(world), queues_(world * world) {}
  void put(int from, int to, std::shared_ptr<Offer> offer);
  std::shared_ptr<Offer> take(int from, int to);

 private:
  int world_;
  std::mutex mutex_;  // guards queues_
  std::vector<std::deque<std::shared_ptr<Offer>>> queues_;
};

class OfferedMessages : public DeviceMessages {
 public:
  OfferedMessages(std::shared_ptr<Transport> transport, std::shared_ptr<Offers> offers, int rank)
      : transport_(std::move(transport)), offers_(std::move(offers)), rank_(rank) {}

  Stream stream_for(const Message& message) override;
  void offer(Message& message) override;
  bool send(Message& message, Stream stream) override;
  bool receive(Message& message, Stream stream) override;
  void withdraw(Message& message) override;
  // Waits, not for long, until no stream of this rank uses an array; of a sender that is its receiver's too.
  void leave() override { wait_for_end(kAtAnEnd); }
  void fault() override { wait_for_end(std::chrono::milliseconds(200)); }  // the collectives wait too

 private:
  void reach(const Message& message, const Offer& offer) const;
  void wait_for_end(std::chrono::milliseconds patience);

  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Offers> offers_;
  int rank_;
  using Queue = std::tuple<Device*, int, bool>;  // device, peer, sending
  std::map<Queue, OwnStream> streams_;
  bool left_ = false;
};

}  // namespace gpucomm
