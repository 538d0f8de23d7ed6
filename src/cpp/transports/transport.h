// A transport moves bytes between ranks and knows no algorithm. It also carries the communicator's control
// channel: what each rank is calling, who is gone, and poison.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/copy.h"
#include "base/dtype.h"
#include "base/registry.h"

namespace gpucomm {

inline constexpr int kEverybody = -1;
inline constexpr int kRememberedCalls = 32;  // of each rank: the flight log
// Of a rank that is gone, but not lost.
inline constexpr const char* kHasClosed = "has closed its communicator";

// What a rank calls, as the others can read it. Words, so that a record can be shared without locks.
struct CallRecord {
  static constexpr int kWords = 16;
  uint64_t sequence = 0;  // 1 for the first call
  uint64_t tag = 0;       // fingerprint of all below and the sequence; rides in every message of the call
  uint64_t count = 0;     // elements of the whole message
  int32_t root = 0, segments = 0;
  uint8_t collective = 0, op = 0, dtype = 0, in_use = 0;
  uint16_t purpose = 0;    // as Purpose of engine/call.h
  uint16_t on_device = 0;  // 1: of arrays on a device, 2: that travel over NCCL, 3: through the hosts' memory
  std::array<char, 24> algorithm{};
  std::array<char, 40> codec{};
  uint64_t counts = 0;  // digest of uneven counts, or of what is packed; 0: even ones, one array
  // n: the n-th send to rank `root`; -n: the n-th receive from it; 0: a collective.
  int64_t message = 0;
  uint64_t label = 0;  // what it is for, as Label of engine/label.h
};
static_assert(sizeof(CallRecord) == CallRecord::kWords * 8);

struct Poison {
  int rank = -1;  // who found the fault; -1: none
  ErrorKind kind = ErrorKind::closed;
  std::string text;
};

// A call that a rank did not make, because something was wrong with its arguments there.
struct Refusal {
  uint64_t sequence = 0;                        // that it would have had; 0: none
  uint64_t times = 0;                           // how often calls of this sequence were refused there
  std::chrono::steady_clock::time_point since;  // when this was, or when we heard of it
  std::string text;                             // "all_reduce #7 was refused: ...", at most kMost bytes
  static constexpr size_t kMost = 384;
};

// A part of a message that has arrived, valid until consumed.
struct Chunk {
  const std::byte* data = nullptr;  // nullptr: the answer of a message in place, which is there already
  size_t bytes = 0;
  uint64_t tag = 0;
  uint64_t stamp = 0;  // on emulated links: when it is there, in ns of the steady clock
  // In place, where the sender will take our message number `answer` (from 1, in this call) into this very
  // memory: that message may be written here at once. 0: only to be read.
  uint32_t answer = 0;
  bool remote = false;  // it is in the peer's private memory: fetch it
  bool copied = false;  // out of the peer's private memory, where only `answer` can write
  bool owned = false;   // its memory is this rank's from now on, and may be kept (below)
};

// Which part of a message to come lies in a chunk's memory already: of that with this tag and number, from
// `offset` on.
struct Kept {
  uint64_t tag = 0;
  uint32_t number = 0;
  size_t offset = 0;
};

// How long messages in private memory go: as a rule of thumb says, or through shared memory, or read where
// they lie (cross-memory attach), where a transport does that.
enum class PrivateWay : uint8_t { rule, staged, attached };
inline constexpr const char* kPrivateWayNames[] = {"rule", "staged", "attached"};

// What the receiver does with a message that this rank has not just computed.
enum class Receiver : uint8_t { any, stores, folds };  // any: or it has

struct SendProgress {
  size_t moved = 0;
  bool begun = false;
  bool lent = false;               // in place: all is announced, the peer has not read it yet
  std::optional<int32_t> lending;  // ... by entries of this kind; 0: not so
  uint32_t entry = 0;              // ... the last of which is this one of the ring
  // Set by the caller: `answer` where the peer may write its message of that number to `answer_to` at once;
  // `answered` where this message has been written to where the peer wants it, so that only a notice is sent.
  uint32_t answer = 0;
  std::byte* answer_to = nullptr;
  bool answered = false;
  uint32_t number = 0;  // set by the caller: of the message among ours to that peer in this call
  Receiver receiver = Receiver::any;  // set by the caller
  PrivateWay way = PrivateWay::rule;  // set by the caller
  size_t footprint = 0;               // set by the caller: bytes of the arrays of this node's ranks
  // On emulated links, in ns of the steady clock: when the message comes to the next port on its way, which
  // is `port` (to the first one when it is ready), when it has passed the last one, and when its last byte is
  // there; 0: not known yet. And the phase of the links in which it began.
  uint64_t comes = 0, left = 0, there = 0;
  int port = 0, phase = 0;
  double ns_per_byte = 0;
  // The stamp of a chunk after which so many bytes are still to come.
  uint64_t stamp(size_t to_come) const {
    return there ? there - static_cast<uint64_t>(static_cast<double>(to_come) * ns_per_byte) : 0;
  }
};

class Heap;

// What the ranks of a communicator hold together, where they are threads of one process: for its collectives,
// and for its messages. Who comes first puts it there.
struct Common {
  std::mutex mutex;
  std::shared_ptr<void> value, messages;
};

// Words that all ranks of a communicator share, zero at first.
inline constexpr int kSharedClocks = 2 * 64 + 1;
using Clocks = std::atomic<uint64_t>;

// Words in memory that all ranks share, zero at first, by which they tell each other what they have enqueued
// on their devices, and by what handles the others open their memory.
inline constexpr int kMostDeviceRanks = 64, kMostHandleBytes = 1024;
struct DeviceWords {
  struct Pair {                          // of a sender and a receiver
    std::atomic<uint64_t> handle_bytes;  // 0: not told yet
    char handles[kMostHandleBytes];
    // Chunks of messages whose filling is enqueued, those whose reading is, and the salts of a call's
    // messages, of this call on devices and of the next one.
    std::atomic<uint64_t> filled, read, salt[2];
    std::atomic<uint64_t> word;  // of Transport::tell
  };
  std::atomic<uint64_t> closed[kMostDeviceRanks];  // 1: this rank has nothing open any more of the others
  Pair pairs[kMostDeviceRanks][kMostDeviceRanks];
};

// Words in memory that all ranks share, zero at first, by which they agree who goes on after a fault: the
// first to write a word decides it for all, so nobody's death can leave them in doubt.
struct Census {
  static constexpr int kRounds = 8;
  uint64_t identity = 0;                                  // of the memory: no other communicator has it
  std::atomic<uint64_t> came[kRounds], members[kRounds];  // sets of ranks, as bits
  std::atomic<uint64_t> outcome[kRounds];                 // kept or abandoned
};

// Nothing here blocks but `sleep`, `leave` and, for a moment, what follows a fault: to tell of it (200 ms
// over a wire), to hear what it was (50 ms in a mailbox), and `withdraw` (100 ms a peer). Messages between
// two ranks arrive in order, in chunks whose sizes are multiples of 64 bytes but for the last of a message.
class Transport {
 public:
  virtual ~Transport() = default;

  // Moves what can be moved now; true when all `bytes` (0 too: a bare header) are on their way and the memory
  // may be reused. `progress` starts as {} for each message.
  virtual bool send(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) = 0;
  // Whether what was sent to a peer, or to kEverybody, needs nothing more from this rank: only then a call
  // ends.
  virtual bool flush(int) { return true; }
  // The next chunk from a peer, or nullptr while there is none.
  virtual const Chunk* peek(int peer) = 0;
  virtual void consume(int peer) = 0;
  // Consumes a chunk over which this rank has written what it will send back, so that this need not be copied
  // there; a transport that lacks the memory copies it all the same.
  virtual void keep(int peer, const Kept&) { consume(peer); }
  // Copies the chunk that lies in the peer's memory, by this where the kernel need not do it; false: not now,
  // perhaps the peer has ended.
  virtual bool fetch(int, std::byte*, CopyBytes) { return false; }
  // Puts the next chunk from a peer where it belongs, and consumes it; false: not now.
  bool take(int peer, const Chunk& chunk, std::byte* to, CopyBytes copy) {
    if (chunk.remote && !fetch(peer, to, copy)) return false;
    if (chunk.bytes && chunk.data) copy(to, chunk.data, chunk.bytes);
    consume(peer);
    return true;
  }
  // Writes the peer's answer over the copied chunk of it; false: it must be sent.
  virtual bool answer(int, const std::byte*) { return false; }

  // Whether it makes links slower than this machine's.
  virtual bool emulates() const { return false; }
  // Whether it matters for a call's time that private memory is read where it lies, or staged; the same on
  // all ranks.
  virtual bool attaches() const { return false; }
  // Whether what this rank waits for is known to be so far away that it should sleep at once.
  virtual bool waits_long() const { return false; }
  // begin_sleep announces that this rank is about to sleep and returns a ticket; look for work once more,
  // then sleep(ticket) returns when anything happened since, or the time is up; end_sleep in any case.
  virtual uint32_t begin_sleep() = 0;
  virtual void sleep(uint32_t ticket, std::chrono::microseconds at_most) = 0;
  virtual void end_sleep() = 0;
  // Wakes this rank's own sleepers: another thread of it has something to do.
  virtual void wake_self() = 0;
  // The same of another rank, where it shares memory.
  virtual void wake(int) {}

  // Called now and then by who waits: asks after the other ranks where no shared memory tells.
  virtual void look() {}
  // Tells the ranks with which this one shares no memory, unasked, which call it is in; false: there are
  // none.
  virtual bool show() { return false; }
  virtual void announce(const CallRecord& record) = 0;             // this rank starts a call
  virtual void complete(uint64_t sequence) = 0;                    // ... and has finished it
  virtual CallRecord call(int rank, uint64_t sequence) const = 0;  // in_use 0: not that one (any more)
  virtual uint64_t arrived(int rank) const = 0;                    // the last sequence a rank announced
  virtual uint64_t completed(int rank) const = 0;
  virtual void refuse(const Refusal& refusal) = 0;  // this rank does not make a call
  virtual Refusal refusal(int rank) const = 0;      // the last of a rank
  // A word for one peer beside all messages, which wait for it nowhere; no smaller than the one before, which
  // it replaces. And the last one that a peer has told; 0: none.
  virtual void tell(int peer, uint64_t word) = 0;
  virtual uint64_t told(int peer) = 0;
  virtual void leave() = 0;  // this rank closes its communicator
  // Why a rank cannot take part any more (kHasClosed, "is gone (pid 12 has ended)"); empty: it can.
  virtual std::string gone(int rank) const = 0;
  // What is known of a live but silent rank, for error texts ("pid 12, stopped").
  virtual std::string describe(int rank) const = 0;
  virtual void poison(const Poison& poison) = 0;  // the first one stays
  virtual bool poisoned() const = 0;
  virtual Poison poison() const = 0;

  // kSharedClocks words for emulated links; nullptr: this transport cannot carry them.
  virtual Clocks* clocks() { return nullptr; }
  // nullptr: the ranks share no memory to agree in.
  virtual Census* census() { return nullptr; }
  // nullptr: the ranks share no memory, or are slowed down on purpose.
  virtual DeviceWords* device_words() { return nullptr; }
  // nullptr: the ranks are no threads of one process.
  virtual Common* common() { return nullptr; }
  // This rank's part of the memory that all ranks of the node map, for arrays; nullptr: none.
  virtual std::shared_ptr<Heap> heap() { return nullptr; }
  // Why there is no heap, or a smaller one than usual; empty: all is well.
  virtual std::string heap_note() const { return "the transport has no shared memory"; }
  // Whether anything was received out of a peer's own memory since the last question: who waits no longer may
  // have reused it.
  virtual bool read_in_place() { return false; }
  // Whether a rank may read this one's private memory: "", or why not.
  virtual std::string reader(int) const { return "the transport does not do that"; }
  // After a fault: peers must not write into this rank's arrays any more.
  virtual void withdraw() {}
  // All ranks should give the same word (not 0); returns the one that was given first.
  virtual uint64_t agree(uint64_t word) { return word; }

  struct Counters {
    uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;  // messages: chunks as they travel
    Counters& operator+=(const Counters& other) {
      bytes_sent += other.bytes_sent, bytes_received += other.bytes_received;
      messages_sent += other.messages_sent;
      return *this;
    }
  };
  virtual Counters counters() const = 0;
};

// Memory that all ranks of a communicator map. The transport that made it knows what is in it.
struct Region {
  virtual ~Region() = default;
  // Takes memory from the machine for these bytes, or says why there is none; and gives it back.
  virtual std::string back(size_t, size_t) { return ""; }
  virtual void unback(size_t, size_t) {}
  // Puts memory of this process alone in place of these bytes, with what is in them: peers that write there
  // write to nobody's.
  virtual void detach(size_t, size_t) {}
  bool detachable = false;
  Common* common = nullptr;  // of threads
  std::byte* base = nullptr;
  size_t size = 0;
};

class Wire;

struct Endpoint {
  int rank = 0, world = 1;
  int fd = -1;                     // shm: the region's memfd
  std::shared_ptr<Region> region;  // local: shared by the threads
  int channel = 0;                 // 0: collectives, 1: point to point
  std::shared_ptr<Wire> wire;      // between nodes
  std::vector<int> wire_ranks;     // the wire's number of each rank
  int context = 0;                 // sets communicators apart that share a wire
  std::vector<int> nodes;          // the node of each rank
  uint64_t identity = 0;           // a number that only these ranks share; 0: that of their memory
};

struct TransportEntry {
  static constexpr const char* kKind = "transport";
  std::string summary, needs;
  std::unique_ptr<Transport> (*open)(const Endpoint&);
};

}  // namespace gpucomm
