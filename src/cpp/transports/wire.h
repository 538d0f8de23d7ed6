// A wire carries bytes between processes that share no memory: what MPI or torch.distributed offer. The
// transport around it is messages.h.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpucomm {

// Nothing here blocks. Messages of one stream between two ranks arrive in order; streams do not wait for each
// other. Throws peer_lost or unavailable when the wire fails.
class Wire {
 public:
  using Request = uint64_t;
  struct Peer {
    int number;  // the wire's own
    int rank;    // of the communicator, for texts
  };
  virtual ~Wire() = default;

  // Starts to send. The memory must stay until the request is done; `matched`: not done before the peer has
  // begun to receive.
  virtual Request send(Peer peer, int stream, const std::byte* data, size_t bytes, bool matched) = 0;
  // Starts to receive a message of at most so many bytes.
  virtual Request receive(Peer peer, int stream, std::byte* data, size_t most) = 0;
  // True when the request has ended; it must not be asked about again.
  virtual bool done(Request request) = 0;
  // Gives up a receive. False: it was too late, its memory must stay, for the message may still come.
  virtual bool cancel(Request request) = 0;
  // Ends what goes to and comes from a peer on a stream: of what it still sends so many messages are dropped,
  // where it would wait for that.
  virtual void leave(Peer /*peer*/, int /*stream*/, size_t /*most*/, int /*count*/) {}
};

}  // namespace gpucomm
