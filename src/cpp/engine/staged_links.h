// How messages of arrays on a device pass through the host: for each peer and direction a few slots of
// page-locked memory, which the device fills or reads and the host's transport carries. The sizes depend on
// nothing but the number of ranks, so all cut messages alike.
#pragma once
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "devices/handles.h"
#include "transports/transport.h"

namespace gpucomm {

class StagedLinks {
 public:
  StagedLinks(std::shared_ptr<Device> device, std::shared_ptr<Transport> transport, int rank, int world);

  // A part of a message, which travels as a message of its own.
  struct Parcel {
    size_t offset = 0, bytes = 0;
    size_t message_bytes = 0;  // of a coded one: the most, how many there are its header says
    bool coded = false;
  };
  // The next part of a message of so many bytes, from `moved` on.
  Parcel parcel(size_t message_bytes, size_t moved, bool coded) const;

  bool has_room(int peer) const { return peers_[peer].filled - peers_[peer].sent < kSlots; }
  // Enqueues the copy of a parcel to a peer that has room for it.
  void fill(int peer, uint64_t tag, const Parcel& parcel, const std::byte* from, Stream stream);
  // Sends what the device has brought; true: something moved, or has come since.
  bool push();
  // Whether all that was filled is sent.
  bool all_sent() const;
  // ... for a peer.
  bool sent_to(int peer) const { return peers_[peer].sent == peers_[peer].filled; }

  // Takes what has come of a parcel from the peer, by chunks as next() gives them or null; true: all of it is
  // here.
  template <class Next>
  bool pull(int peer, const Parcel& parcel, Next next) {
    if (!may_come(peer)) return false;
    while (lacks(peer, parcel)) {
      const Chunk* chunk = next();
      if (!chunk || !take(peer, parcel, *chunk)) return false;
    }
    return came(peer, parcel), true;
  }
  // ... which then lies here,
  const std::byte* data(int peer) const { return slot(peers_[peer].in, peers_[peer].taken); }
  // has so many bytes,
  size_t bytes(int peer) const { return peers_[peer].arrived; }
  // and is the last of its message.
  bool last(int peer) const { return peers_[peer].last; }
  // What reads it is enqueued on that stream.
  void give_back(int peer, Stream stream);

  // Whether something has waited for the device since the last question, which tells nobody when it is done.
  bool late() { return std::exchange(late_, false); }

 private:
  static constexpr uint64_t kSlots = 2;
  struct Filled {
    uint64_t tag = 0;
    Parcel parcel;
    SendProgress progress;
  };
  struct Peer {
    OwnPinned out, in;                         // kSlots each, from their first use on
    std::vector<OwnEvent> filled_there, read;  // by slot: the device has filled it, has read it
    std::array<Filled, kSlots> under_way;
    uint64_t filled = 0, sent = 0, taken = 0;  // parcels
    size_t out_bytes = 0, in_bytes = 0;        // of the coded message under way, by its header
    size_t arrived = 0;                        // of the parcel that is coming
    bool begun = false, last = false;
  };
  std::byte* slot(const OwnPinned& slots, uint64_t index) const {
    return slots.get() + index % kSlots * slot_bytes_;
  }
  void open(OwnPinned& slots, std::vector<OwnEvent>& events);
  bool push(int peer);
  bool may_come(int peer);
  bool lacks(int peer, const Parcel& parcel) const;
  bool take(int peer, const Parcel& parcel, const Chunk& chunk);
  void came(int peer, const Parcel& parcel);

  std::shared_ptr<Device> device_;
  std::shared_ptr<Transport> transport_;
  int rank_, world_;
  size_t slot_bytes_;
  std::vector<Peer> peers_;  // by rank; this one's own is not used
  bool late_ = false, pulled_ = false;
};

}  // namespace gpucomm
