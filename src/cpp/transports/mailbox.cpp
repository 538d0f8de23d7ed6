#include "transports/mailbox.h"

#include <algorithm>

#include "base/copy.h"
#include "base/cpus.h"
#include "base/fence.h"
#include "base/futex.h"
#include "transports/mailbox_entry.h"
#include "transports/mailbox_layout.h"

namespace gpucomm {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

Mailbox::Mailbox(std::shared_ptr<Region> region, int rank, int world, int channel)
    : region_(std::move(region)), layout_(world, channel), rank_(rank), world_(world) {
  base_ = region_->base + layout_.begin;
  const auto* header = reinterpret_cast<const RegionHeader*>(base_);
  if (region_->size < mailbox_bytes(world) || header->magic != kMagic ||
      header->world != static_cast<uint64_t>(world))
    fail(ErrorKind::mismatch, "the shared memory handed to rank ", rank, " was not made for a world of ",
         world);
  full_fences_ = &reinterpret_cast<RegionHeader*>(base_)->full_fences;
  if (!enable_asymmetric_fence()) full_fences_->store(1);
  for (int peer = 0; peer < world; ++peer) boxes_.push_back(peer == rank ? Box{} : open_box(peer));
  open_heap();
  tell_cpus();
}

// Pairs (low, high) are numbered row by row.
static size_t pair_index(int a, int b) {
  const size_t low = std::min(a, b), high = std::max(a, b);
  return high * (high - 1) / 2 + low;
}

Mailbox::Box Mailbox::open_box(int peer) const {
  const size_t pair = pair_index(rank_, peer);
  const size_t pairs = static_cast<size_t>(world_) * (world_ - 1) / 2;
  const size_t ring = (layout_.slot_area - layout_.ring_area) / (2 * pairs);
  std::byte* rings = base_ + layout_.ring_area + 2 * pair * ring;
  const bool low = rank_ < peer;
  std::byte *out = rings + (low ? 0 : ring), *in = rings + (low ? ring : 0);
  Box box;
  box.out = reinterpret_cast<Entry*>(out), box.in = reinterpret_cast<Entry*>(in);
  box.give = reinterpret_cast<std::atomic<uint32_t>*>(out + kEntryBytes * kRingEntries);
  box.take = reinterpret_cast<std::atomic<uint32_t>*>(in + kEntryBytes * kRingEntries);
  box.slots = base_ + layout_.slot_area + pair * layout_.slots * layout_.slot_bytes;
  box.places.resize(layout_.slots);
  const int half = layout_.slots / 2;
  for (int i = half - 1; i >= 0; --i) box.owned.push_back(low ? i : half + i);
  return box;
}

Entry& Mailbox::entry(Entry* ring, uint32_t index) const {
  return *reinterpret_cast<Entry*>(reinterpret_cast<std::byte*>(ring) + (index % kRingEntries) * kEntryBytes);
}

RankArea& Mailbox::area(int rank) const {
  const size_t each = (layout_.ring_area - layout_.rank_area) / world_;
  return *reinterpret_cast<RankArea*>(base_ + layout_.rank_area + rank * each);
}

// One thread at a time counts, others may read: no locked instruction.
static void add(std::atomic<uint64_t>& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

bool Mailbox::send(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) {
  Box& box = boxes_[peer];
  if (progress.lent) return returned(peer, progress);
  if (progress.answered) return notify(peer, tag, bytes);
  if (!progress.lending) progress.lending = progress.there ? 0 : lending(peer, data, bytes, progress);
  if (*progress.lending) return lend(peer, tag, data, bytes, progress);
  // Beyond the caches slots take turns with those that come, so that memory is read and written at once.
  const bool alternates = progress.receiver == Receiver::stores && progress.footprint >= last_level_cache();
  while (!progress.begun || progress.moved < bytes) {
    Entry& e = entry(box.out, box.out_next);
    if (e.full.load(std::memory_order_acquire)) return false;
    std::byte* to = e.payload;
    size_t n = bytes;
    e.slot = kInline;
    if (bytes > kInlineBytes) {
      n = std::min(bytes - progress.moved, layout_.slot_bytes);
      e.slot = take_kept(box, {tag, progress.number, progress.moved}, n);
      to = nullptr;
      if (e.slot < 0) {
        if (!take_slot(box)) return false;
        e.slot = next_slot(box, n);
        to = place(box, e.slot, n);
      }
    }
    if (n && to) copy_bytes(to, data + progress.moved, n);
    e.bytes = static_cast<uint32_t>(n), e.stamp = progress.stamp(bytes - progress.moved - n);
    progress.moved += n, progress.begun = true;
    publish(peer, e, tag, n);
    if (alternates) return progress.moved == bytes;
  }
  return true;
}

// Hands the entry that was filled in last to the peer.
void Mailbox::publish(int peer, Entry& e, uint64_t tag, size_t bytes) {
  Box& box = boxes_[peer];
  e.tag = tag;
  box.in_slot[box.out_next % kRingEntries] = e.slot >= 0;
  e.full.store(1 + (e.slot >= 0 ? box.places[e.slot].at : 0), std::memory_order_release);
  ++box.out_next;
  add(bytes_sent_, bytes), add(messages_sent_, 1);
  ring_bell(peer);
}

bool Mailbox::take_back(Box& box) {
  std::atomic<uint32_t>& cell = box.take[box.take_next % layout_.slots];
  const uint32_t slot = cell.load(std::memory_order_acquire);
  if (!slot) return false;
  cell.store(0, std::memory_order_release);
  ++box.take_next;
  box.owned.push_back(static_cast<int>(slot) - 1);
  box.places[slot - 1].returned = true;
  return true;
}

// The slot that holds this part already, or -1.
int Mailbox::take_kept(Box& box, const Kept& part, size_t bytes) {
  const auto same = [&](const Box::Filled& f) {
    return f.part.tag == part.tag && f.part.number == part.number && f.part.offset == part.offset &&
           f.bytes == bytes;
  };
  const auto found = std::find_if(box.kept.begin(), box.kept.end(), same);
  if (found == box.kept.end()) return -1;
  const int slot = found->slot;
  box.kept.erase(found);
  return slot;
}

// Sees to it that a slot is free. What is kept is a copy: the last, which will be sent last, can go.
bool Mailbox::take_slot(Box& box) {
  if (!box.owned.empty() || take_back(box)) return true;
  if (box.kept.empty()) return false;
  box.owned.push_back(box.kept.back().slot);
  box.kept.pop_back();
  return true;
}

// Short messages go round all slots, as long as these stay in a core's cache: lines that a peer has read a
// while ago take less to write than those of just now. Long ones take what was consumed last.
int Mailbox::next_slot(Box& box, size_t bytes) const {
  constexpr size_t kCached = 1 << 20;
  const bool round = bytes * layout_.slots * (world_ - 1) <= kCached;
  const auto next = round ? box.owned.begin() : box.owned.end() - 1;
  const int slot = *next;
  box.owned.erase(next);
  return slot;
}

// Where in a slot a message goes. In one that came back as it was, every line of the last message lies in the
// peer's cache too, which is slow to write: there it goes behind that one, until the slot is full. Ranks that
// outnumber the cores share their caches, and gain more where less is touched.
std::byte* Mailbox::place(Box& box, int slot, size_t bytes) const {
  constexpr size_t kPage = 4 << 10;
  Box::Place& place = box.places[slot];
  size_t at = place.at;
  if (place.returned && world_ <= usable_cpus()) at += round_up(bytes, kPage);
  if (at + bytes > layout_.slot_bytes) at = 0;
  place = {static_cast<uint32_t>(at), false};
  return box.slots + slot * layout_.slot_bytes + at;
}

const Chunk* Mailbox::peek(int peer) {
  Box& box = boxes_[peer];
  Entry& e = entry(box.in, box.in_next);
  const uint64_t full = e.full.load(std::memory_order_acquire);
  if (!full) return nullptr;
  if (e.slot == kInPlace) {
    const Loan loan = loan_of(e);
    const size_t n = std::min<size_t>(loan.bytes - box.in_place, layout_.slot_bytes);
    box.chunk = {region_->base + loan.offset + box.in_place, n, e.tag, 0, loan.answer};
    read_in_place_ = true;
  } else if (is_fetched(e)) {
    box.chunk = {nullptr, loan_of(e).bytes, e.tag, 0, 0, true};
    read_in_place_ = true;
  } else if (e.slot == kFolded) {
    if (!copy_piece(peer, e)) return nullptr;
    box.chunk = {box.piece.get(), piece_at(loan_of(e), box.in_place), e.tag, 0, loan_of(e).answer};
    box.chunk.copied = read_in_place_ = true;
  } else if (e.slot == kAnswer) {
    box.chunk = {nullptr, loan_of(e).bytes, e.tag, 0};
  } else {
    box.chunk = {e.payload, e.bytes, e.tag, e.stamp};
    if (e.slot >= 0) {
      const auto at = static_cast<uint32_t>(full - 1);
      box.places[e.slot] = {at, false};
      box.chunk.data = box.slots + e.slot * layout_.slot_bytes + at;
      box.chunk.owned = true;
    }
  }
  return &box.chunk;
}

void Mailbox::consume(int peer) {
  Box& box = boxes_[peer];
  const int slot = finish_chunk(peer);
  if (slot < 0) return;
  box.owned.push_back(slot);
  settle(box);
}

void Mailbox::keep(int peer, const Kept& part) {
  Box& box = boxes_[peer];
  box.kept.push_back({part, box.chunk.bytes, finish_chunk(peer)});
  settle(box);
}

// Hands the chunk's entry back; returns the slot that this rank has taken over with it, or -1.
int Mailbox::finish_chunk(int peer) {
  Box& box = boxes_[peer];
  Entry& e = entry(box.in, box.in_next);
  add(bytes_received_, box.chunk.bytes);
  if (e.slot == kInPlace || e.slot == kFolded) {
    box.in_place += box.chunk.bytes, box.copied = false;
    if (box.in_place < loan_of(e).bytes) return -1;
    box.in_place = 0;
  }
  const int slot = e.slot;
  ++box.in_next;
  e.full.store(0, std::memory_order_release);
  ring_bell(peer);
  return slot;
}

// How many slots lie in messages that the peer has not consumed yet, as far as this rank can see.
size_t Mailbox::slots_under_way(Box& box) const {
  // What lies a whole ring back is consumed, and its entry is another message's now.
  if (box.out_next - box.out_seen > kRingEntries) box.out_seen = box.out_next - kRingEntries;
  while (box.out_seen != box.out_next && !entry(box.out, box.out_seen).full.load(std::memory_order_relaxed))
    ++box.out_seen;
  size_t slots = 0;
  for (uint32_t i = box.out_seen; i != box.out_next; ++i) slots += box.in_slot[i % kRingEntries];
  return slots;
}

// After a slot was taken over. No rank keeps more than three quarters of a pair's, its unconsumed messages
// and what lies in its return ring included: so its peer can always have a quarter on the way, whatever this
// rank waits for, and a plan that needs no buffering cannot lock up for want of slots.
void Mailbox::settle(Box& box) {
  while (take_back(box)) {
  }
  const size_t under_way = slots_under_way(box), most = static_cast<size_t>(layout_.slots) * 3 / 4;
  while (box.owned.size() + box.kept.size() + under_way > most && take_slot(box)) {
    // The one held longest: the last is still warm here.
    box.give[box.give_next++ % layout_.slots].store(box.owned.front() + 1, std::memory_order_release);
    box.owned.erase(box.owned.begin());
  }
}

// A sleeper counts itself, then looks once more; we publish, then look whether it sleeps: one sees.
void Mailbox::ring_bell(int rank) {
  if (full_fences_->load(std::memory_order_relaxed))
    std::atomic_thread_fence(std::memory_order_seq_cst);
  else
    light_fence();
  RankArea& a = area(rank);
  if (!a.sleepers.load(std::memory_order_relaxed)) return;
  a.bell.fetch_add(1, std::memory_order_release);
  futex_wake(a.bell);
}

uint32_t Mailbox::begin_sleep() {
  RankArea& a = area(rank_);
  a.sleepers.fetch_add(1, std::memory_order_seq_cst);
  heavy_fence();
  return a.bell.load(std::memory_order_acquire);
}

void Mailbox::sleep(uint32_t ticket, std::chrono::microseconds at_most) {
  futex_wait(area(rank_).bell, ticket, at_most);
}
void Mailbox::end_sleep() { area(rank_).sleepers.fetch_sub(1, std::memory_order_seq_cst); }
void Mailbox::wake_self() { ring_bell(rank_); }
void Mailbox::wake(int rank) { ring_bell(rank); }

Transport::Counters Mailbox::counters() const {
  return {bytes_sent_.load(), bytes_received_.load(), messages_sent_.load()};
}

}  // namespace gpucomm
