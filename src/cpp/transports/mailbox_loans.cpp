// Messages in place: the sender lends its memory, the receiver reads it and may answer into it.
#include <algorithm>

#include "base/pages.h"
#include "transports/mailbox.h"
#include "transports/mailbox_entry.h"

namespace gpucomm {

bool Mailbox::lendable(int peer, const std::byte* data, size_t bytes) const {
  return bytes >= kLeastLoan && data >= heap_begin_ && data + bytes <= heap_end_ && maps_heaps(peer);
}

// The kind of entry by which a message goes in place; 0: it does not.
int32_t Mailbox::lending(int peer, const std::byte* data, size_t bytes, const SendProgress& progress) {
  if (lendable(peer, data, bytes)) return progress.receiver == Receiver::stores ? kStored : kInPlace;
  if (!fetchable(peer, data, bytes, progress)) return 0;
  return progress.receiver == Receiver::stores ? kRemote : kFolded;
}

// The whole message by one entry, or by as few as have room for where its pieces lie.
bool Mailbox::lend(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) {
  Box& box = boxes_[peer];
  while (!progress.lent) {
    Entry& e = entry(box.out, box.out_next);
    if (e.full.load(std::memory_order_acquire)) return false;
    const size_t part =
        std::min(bytes - progress.moved, progress.lending == kFolded ? Pieces::kMostBytes : bytes);
    lend_part(e, data + progress.moved, part, progress);
    progress.entry = box.out_next, progress.moved += part, progress.begun = true;
    progress.lent = progress.moved == bytes;
    publish(peer, e, tag, part);
  }
  return false;
}

void Mailbox::lend_part(Entry& e, const std::byte* data, size_t bytes, const SendProgress& progress) {
  e.slot = *progress.lending, e.bytes = 0, e.stamp = 0;
  const uint64_t offset = is_private(e.slot) ? reinterpret_cast<uint64_t>(data) : data - region_->base;
  std::byte* const answer_to = progress.answer ? progress.answer_to + progress.moved : nullptr;
  const bool there = e.slot == kInPlace && region_->detachable && answer_to == data;
  const Loan loan{offset, bytes, there || e.slot == kFolded ? progress.answer : 0};
  std::memcpy(e.payload, &loan, sizeof loan);
  if (e.slot == kFolded) open_pieces(e, loan, answer_to);
  if (there) open(answer_to, bytes);
  if (is_fetched(e)) sharing_of(e).pieces.store(0, std::memory_order_relaxed);
}

// The message is there already; the peer learns it.
bool Mailbox::notify(int peer, uint64_t tag, size_t bytes) {
  Entry& e = entry(boxes_[peer].out, boxes_[peer].out_next);
  if (e.full.load(std::memory_order_acquire)) return false;
  const Loan loan{0, bytes, 0};
  std::memcpy(e.payload, &loan, sizeof loan);
  e.slot = kAnswer, e.bytes = 0, e.stamp = 0;
  publish(peer, e, tag, bytes);
  return true;
}

void Mailbox::open(std::byte* begin, size_t bytes) {
  open_begin_ = open_end_ ? std::min(open_begin_, begin) : begin;
  open_end_ = std::max(open_end_, begin + bytes);
}

// A peer that was stopped in the middle of an answer would go on with it whenever it wakes: into memory that
// is not ours any more.
void Mailbox::withdraw() {
  for (int peer = 0; peer < world_; ++peer)
    if (peer != rank_) revoke_pieces(peer), revoke_answers(peer);
  if (!open_end_) return;
  const size_t begin = page_begin(open_begin_ - region_->base), end = page_end(open_end_ - region_->base);
  region_->detach(begin, end - begin);
  open_begin_ = open_end_ = nullptr;
}

// Whether the peer has read all of a loan. A ring further on, the entry is another message's.
bool Mailbox::returned(int peer, const SendProgress& progress) {
  const Box& box = boxes_[peer];
  if (box.out_next - progress.entry > kRingEntries) return true;
  Entry& e = entry(box.out, progress.entry);
  if (!e.full.load(std::memory_order_acquire)) return true;
  if (is_fetched(e)) write_pieces(peer, e);
  return false;
}

}  // namespace gpucomm
