// A rank's memory on its device that the devices of other processes read: a few slots for the chunks of
// messages to each peer. Who fills a slot and who reads it work on streams of their own; an event of the
// sender says that a chunk is there, one of the receiver that it was read. An event must be recorded before
// another stream can wait for it, so the hosts count in shared memory what they have enqueued.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "devices/handles.h"
#include "transports/transport.h"

namespace gpucomm {

// This rank has nothing open any more of what other processes have on their devices, which they keep until
// then.
void tell_nothing_open(Transport& transport, int rank);

class SharedArena {
 public:
  // GPUCOMM_ARENA_MIB at most; throws unavailable where that is too little, or the device shares nothing.
  SharedArena(std::shared_ptr<Device> device, std::shared_ptr<Transport> transport, int rank, int world);

  // Opens what the peer has told, or all have, which never blocks; false: that was not all.
  bool meet(int peer);
  bool meet();
  size_t chunk_bytes() const { return chunk_bytes_; }

  bool has_room(int peer) const;
  // Where the next chunk goes to a peer that has room for it: what the stream gets from now on may write it.
  std::byte* room(int peer, Stream stream);
  // It is written by what the stream holds.
  void tell_filled(int peer, Stream stream);
  // All three by a copy.
  void fill(int peer, const std::byte* from, size_t bytes, Stream stream);
  // What the stream holds reads, here, the chunk that was filled last.
  void keep(int peer, Stream stream);
  bool has_chunk(int peer) const;
  // The next chunk of a peer that has one: what the stream gets from now on finds it there.
  const std::byte* chunk(int peer, Stream stream);
  // What reads it is enqueued on that stream.
  void give_back(int peer, Stream stream);

  // Whether the reading of all chunks that were sent to live ranks is enqueued, and what of it is has ended.
  bool all_taken() const;
  bool all_read() const;
  // Closes what it has opened: no stream uses it any more.
  void close();
  // Until then its memory must stay. A process that has ended has nothing open.
  bool closed_by_all() const;

 private:
  struct Peer {
    std::vector<OwnEvent> filled, read;              // by slot: of the chunks to it, and from it
    std::vector<OwnEvent> filled_there, read_there;  // its own
    std::vector<OwnEvent> kept;                      // of the chunks to it: this rank has read them too
    OpenedMemory memory;                             // its arena
    const std::byte* slots = nullptr;                // ... of chunks to this rank
    uint64_t sent = 0, taken = 0;                    // chunks
  };
  std::byte* allocate(size_t bytes) const;
  std::byte* slots_to(int peer) const;
  void tell(int peer);
  void open(int peer, const std::string& told);
  bool reads(int peer) const;  // what was sent to it
  bool has_ended(int peer) const;
  const DeviceWords::Pair& to(int peer) const { return words_.pairs[rank_][peer]; }
  const DeviceWords::Pair& from(int peer) const { return words_.pairs[peer][rank_]; }

  std::shared_ptr<Device> device_;
  std::shared_ptr<Transport> transport_;
  DeviceWords& words_;
  int rank_, world_;
  size_t chunk_bytes_;
  OwnShared memory_;
  std::vector<Peer> peers_;  // by rank; this one's own is not used
};

}  // namespace gpucomm
