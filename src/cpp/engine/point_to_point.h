// Messages between two ranks, on a channel of their own: they never wait for collectives, nor these for them.
// Those of one pair and direction are matched in the order of issue; all pairs move at once.
#pragma once
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "engine/device_messages.h"
#include "engine/fate.h"
#include "engine/refusals.h"

namespace gpucomm {

// Where a message's array is, if a device holds it.
struct Residence {
  std::shared_ptr<Device> device;
  Stream stream = nullptr;  // that it is used on
  DeviceWay way = DeviceWay::threads;
  NcclSource nccl{};  // where that is the way
};

class PointToPoint : public Drivable {
 public:
  PointToPoint(std::shared_ptr<Transport> transport, Fate& fate, int ranks_here);

  // Starts a send or a receive; it moves on whenever anything here is driven.
  std::shared_ptr<Message> start(bool sending, int peer, Dtype dtype, size_t count, std::byte* data,
                                 Seconds timeout, const Residence& residence = {});
  // The next send or receive was not made, for its arguments; tells the other end, which may wait for it.
  // source: of a sendrecv's send, the rank whose message was not received with it, or -1.
  void refuse(bool sending, int peer, const std::string& why, int source = -1);
  // Leaves what is under way to the progress thread.
  void hand_over();
  // Ends all that is under way with this error.
  void end(const Error& error);
  // The communicator is closed: what was sent still leaves. What was not done, and will not be.
  std::optional<Error> leave();
  bool drive_once() override;
  void check(const Pending* waited = nullptr, std::optional<Seconds> expired = {}) override;
  // Of a host that waits for enqueued work, as DeviceCalls::check; what it throws ends the communicator.
  void check_enqueued(bool done, std::optional<Seconds> expired);
  Transport::Counters counters() const;

 private:
  using Queue = std::deque<std::shared_ptr<Message>>;
  bool advance();
  bool advance_all();
  bool move(Message& message);
  bool receive(Message& message);
  bool pass_header(Message& message);
  void reside(Message& message, const Residence& residence);
  bool move_on_device(Message& message);
  const Chunk* expect(const Message& message);
  void finish_front(Queue& queue);
  void announce(const Message& message);
  bool drop(const Error& error);
  void abandon(Message& message, const Error& error);
  void look(const std::shared_ptr<Message>& message);
  void check_refusal(const Message& message) const;
  bool matched(const Message& message, bool complete) const;
  [[noreturn]] void time_out(const Message& message, Seconds after) const;
  void fault(const Error& error);
  void interrupt() override;

  Fate& fate_;
  mutable std::mutex mutex_;  // guards all below
  std::vector<Queue> queues_;
  std::vector<int> active_;        // the queues that are not empty
  std::vector<uint64_t> numbers_;  // the last of each queue
  uint64_t calls_ = 0;
  Refusals refusals_;
  std::unique_ptr<DeviceMessages> on_device_;  // from the first message on a device on
  uint64_t device_bytes_[2] = {};              // received and sent on devices
  bool moved_ = false;
};

}  // namespace gpucomm
