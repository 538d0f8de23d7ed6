// Mailboxes in memory that all ranks map: what the transports local and shm share.
//
// Per ordered pair of ranks a ring of entries: a header and up to kInlineBytes of payload. Longer messages
// pass through slots, which belong to the unordered pair and change hands with the message: who has consumed
// a slot owns it and sends its next message in it, so a reply is written to lines just read from the peer,
// which costs much less than to lines that the peer has only read. Who holds too many gives one back by a
// second ring. Who folds a slot's message and sends the result back writes it over the message, and sends the
// slot as it is.
//
// A long message that lies in this rank's heap (gpucomm.empty) is not copied: its entry says where it lies,
// the receiver reads it there, and the send has ended when the receiver has read all of it. Where the sender
// will get an answer into that same memory, the receiver may write it there itself. A long message in private
// memory, which the receiver only stores, it fetches in the same way by cross-memory attach, where that is
// quick; the sender, while it waits for that, does a part of the work. What it folds it reads piece by piece
// into a buffer, and writes the answer back there, while its cache holds both.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/process.h"
#include "transports/heap.h"
#include "transports/remote.h"
#include "transports/transport.h"

namespace gpucomm {

inline constexpr size_t kInlineBytes = 1024;
inline constexpr int kRingEntries = 16;
inline constexpr int kMaxWorld = 64;

inline constexpr int kChannels = 2;

// The mailboxes of one channel; those of all channels lie one behind the other.
struct MailboxLayout {
  int slots = 16;
  size_t slot_bytes = 128 << 10;
  size_t begin = 0;                                               // of the channel in its region
  size_t rank_area = 0, ring_area = 0, slot_area = 0, total = 0;  // offsets from there, and the size of all
  explicit MailboxLayout(int world, int channel = 0);
};

// Of all channels.
size_t mailbox_bytes(int world);

struct Entry;
struct Loan;
struct Sharing;
struct RegionHeader;
struct RankArea;

// Writes the headers of a fresh, zeroed region: mailboxes, then a heap of so many bytes for each rank.
void format_region(std::byte* base, int world, size_t heap_bytes);

class Mailbox : public Transport {
 public:
  Mailbox(std::shared_ptr<Region> region, int rank, int world, int channel = 0);

  bool send(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) override;
  const Chunk* peek(int peer) override;
  void consume(int peer) override;
  void keep(int peer, const Kept& kept) override;
  uint32_t begin_sleep() override;
  void sleep(uint32_t ticket, std::chrono::microseconds at_most) override;
  void end_sleep() override;
  void wake_self() override;
  void wake(int rank) override;
  Common* common() override { return region_->common; }
  void announce(const CallRecord& record) override;
  void complete(uint64_t sequence) override;
  CallRecord call(int rank, uint64_t sequence) const override;
  uint64_t arrived(int rank) const override;
  uint64_t completed(int rank) const override;
  void refuse(const Refusal& refusal) override;
  Refusal refusal(int rank) const override;
  void tell(int peer, uint64_t word) override;
  uint64_t told(int peer) override;
  void leave() override;
  std::string gone(int rank) const override;
  std::string describe(int rank) const override;
  void poison(const Poison& poison) override;
  bool poisoned() const override;
  Poison poison() const override;
  Clocks* clocks() override;
  Census* census() override;
  DeviceWords* device_words() override;
  std::shared_ptr<Heap> heap() override { return heap_; }
  std::string heap_note() const override;
  bool fetch(int peer, std::byte* to, CopyBytes copy) override;
  bool answer(int peer, const std::byte* from) override;
  std::string reader(int rank) const override;
  void withdraw() override;
  bool read_in_place() override { return std::exchange(read_in_place_, false); }
  uint64_t agree(uint64_t word) override;
  Counters counters() const override;

 protected:
  // The process behind a rank: pid (0: not yet known) and when it started.
  std::pair<int64_t, Birth> who(int rank) const;
  void set_process(int64_t pid, const Birth& birth);  // this rank's

 private:
  RankArea& area(int rank) const;
  struct Box {                                              // this rank's view of one peer
    Entry *out = nullptr, *in = nullptr;                    // rings
    std::atomic<uint32_t>*give = nullptr, *take = nullptr;  // slots given back, to and by the peer
    std::byte* slots = nullptr;
    std::vector<int> owned;
    struct Filled {  // owned too: holds part of a message to come
      Kept part;
      size_t bytes;
      int slot;
    };
    std::vector<Filled> kept;
    struct Place {            // in a slot
      uint32_t at = 0;        // where its last message begins
      bool returned = false;  // that message has come back as it was
    };
    std::vector<Place> places;  // by slot
    uint32_t out_next = 0, out_seen = 0, in_next = 0, give_next = 0, take_next = 0;
    std::array<bool, kRingEntries> in_slot{};  // which of the last messages sent took a slot
    size_t in_place = 0;                       // bytes read of a message in place
    Aligned piece;                             // those of a message in private memory that come next,
    bool copied = false;                       // once they are there
    uint32_t read = 0;                         // pieces read of a message that both ends copy
    bool reading = false;                      // one more is this rank's
    Chunk chunk;
  };
  Box open_box(int peer) const;
  Entry& entry(Entry* ring, uint32_t index) const;
  bool take_back(Box& box);
  bool take_slot(Box& box);
  int next_slot(Box& box, size_t bytes) const;
  std::byte* place(Box& box, int slot, size_t bytes) const;
  int take_kept(Box& box, const Kept& part, size_t bytes);
  int finish_chunk(int peer);
  void settle(Box& box);
  void open_heap();
  bool maps_heaps(int rank) const;
  bool lendable(int peer, const std::byte* data, size_t bytes) const;
  int32_t lending(int peer, const std::byte* data, size_t bytes, const SendProgress& progress);
  bool lend(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress);
  void lend_part(Entry& e, const std::byte* data, size_t bytes, const SendProgress& progress);
  bool read_private(int peer, uint64_t from, std::byte* to, size_t bytes) const;
  bool fetchable(int peer, const std::byte* data, size_t bytes, const SendProgress& progress);
  bool quicker_fetched(const std::byte* data, size_t bytes, const SendProgress& progress);
  void probe_peers();
  void tell_cpus();
  void hear_cpus();
  void open(std::byte* begin, size_t bytes);
  bool notify(int peer, uint64_t tag, size_t bytes);
  bool returned(int peer, const SendProgress& progress);
  void write_pieces(int peer, Entry& e);
  bool reads(int peer) const;
  bool share(int peer, Sharing& sharing, std::byte* to, size_t bytes);
  bool read_pieces(int peer, Entry& e, std::byte* to, CopyBytes copy);
  bool read_lent(int peer, const Entry& e, size_t begin, size_t bytes, std::byte* to, CopyBytes copy) const;
  void open_pieces(Entry& e, const Loan& loan, std::byte* answer_to);
  bool copy_piece(int peer, const Entry& e);
  void revoke(int peer, std::span<iovec> targets, const std::function<bool()>& ended);
  void revoke_pieces(int peer);
  void revoke_answers(int peer);
  void publish(int peer, Entry& e, uint64_t tag, size_t bytes);
  size_t slots_under_way(Box& box) const;
  void ring_bell(int rank);

  std::shared_ptr<Region> region_;
  std::byte* base_ = nullptr;  // of the channel
  std::atomic<uint32_t>* full_fences_ = nullptr;
  MailboxLayout layout_;
  int rank_, world_;
  std::vector<Box> boxes_;
  std::shared_ptr<Heap> heap_;
  std::byte *heap_begin_ = nullptr, *heap_end_ = nullptr;  // this rank's
  std::byte *open_begin_ = nullptr, *open_end_ = nullptr;  // what peers may write to in this call
  bool read_in_place_ = false;
  HugePages huge_pages_;
  Copyable copyable_;
  uint64_t cookie_ = 0;  // peers read it to find out whether they can
  bool heard_cpus_ = false;
  int unprobed_ = 0;  // peers that this rank has not tried to read yet
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0}, messages_sent_{0};
};

}  // namespace gpucomm
