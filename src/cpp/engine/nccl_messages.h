// Messages of device arrays over NCCL.
//
// - NCCL does the sends and receives of a communicator on one stream in their order, and its sends wait there
//   for their receivers: two ranks whose messages cross would wait for each other. So each ordered pair of
//   ranks that has messages has a communicator of its own, of two, on a stream of its own.
// - The first header of a pair carries the unique id; both ends open the communicator when they have come to
//   that message. Nothing of NCCL blocks: each attempt looks whether it is done with what it has.
// - NCCL would hang where the ends differ, or one does not come. So the receiver answers every header that
//   fits, by Transport::tell, which no message on the host's channel holds up; only then does the sender give
//   NCCL the message. What does not fit, or does not come, ends as in host memory.
// - Empty messages are headers and answers only.
#pragma once
#include <atomic>
#include <map>
#include <utility>

#include "devices/nccl_communicator.h"
#include "engine/device_messages.h"
#include "engine/enqueued_watch.h"
#include "engine/message_streams.h"

namespace gpucomm {

class NcclMessages : public DeviceMessages {
 public:
  NcclMessages(std::shared_ptr<Transport> transport, NcclSource source, const Fate& fate)
      : transport_(std::move(transport)),
        source_(std::move(source)),
        watch_(fate.control(), fate.rank(), fate.world(), kNcclEnqueued),
        rank_(fate.rank()),
        world_(fate.world()),
        streams_(rank_, world_, "over NCCL") {}
  ~NcclMessages() override;

  Stream stream_for(const Message& message) override;
  void offer(Message& message) override;
  bool send(Message& message, Stream stream) override;
  bool receive(Message& message, Stream stream) override;
  Silent silent(const Message& message) override;
  void withdraw(Message&) override { withdrawn_ = true; }
  void leave() override;
  void fault() override;
  std::optional<Error> settle() override;
  bool watched() const override { return !open_peers().empty() && !closed_; }
  void check(bool done, std::optional<Seconds> waited) override;

 private:
  // Of one direction: this rank and a peer.
  struct Pair {
    nccl::UniqueId id{};
    uint64_t named = 0;  // the message that carries the id; 0: there is none yet
    uint64_t met = 0;    // the last message whose two ends fit
    uint64_t given = 0;  // the last message that NCCL has
    std::unique_ptr<NcclCommunicator> communicator;
  };
  using Pairs = std::map<std::pair<int, bool>, Pair>;  // by peer and whether this rank sends

  Pair& pair_of(const Message& message) { return pairs_.at({message.peer, message.sending}); }
  void need_library() const;
  void open(Pair& pair, const Message& message);
  bool give(Message& message, Stream stream);
  bool settled(Pair& pair, int peer);
  std::vector<int> open_peers() const;  // with which NCCL was opened

  std::shared_ptr<Transport> transport_;
  NcclSource source_;
  EnqueuedWatch watch_;
  int rank_, world_;
  Pairs pairs_;
  MessageStreams streams_;
  bool withdrawn_ = false;
  std::atomic<bool> ended_{false}, closed_{false};  // closed: ended well
};

}  // namespace gpucomm
