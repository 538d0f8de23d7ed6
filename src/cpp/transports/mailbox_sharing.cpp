// Messages that the receiver fetches from where they lie, alone or, where there are cores for both, together
// with the sender: it reads, from private memory by cross-memory attach, and the sender writes by that.
#include <algorithm>

#include "base/copy.h"
#include "base/cpus.h"
#include "base/soon.h"
#include "transports/mailbox.h"
#include "transports/mailbox_entry.h"
#include "transports/mailbox_layout.h"

namespace gpucomm {

using namespace std::chrono_literals;

bool Mailbox::fetch(int peer, std::byte* to, CopyBytes copy) {
  Entry& e = entry(boxes_[peer].in, boxes_[peer].in_next);
  const size_t bytes = loan_of(e).bytes;
  Sharing& sharing = sharing_of(e);
  const size_t least = e.slot == kStored ? Sharing::kLeastStored : Sharing::kLeast;
  if (sharing.pieces.load(std::memory_order_relaxed) || (bytes >= least && share(peer, sharing, to, bytes)))
    return read_pieces(peer, e, to, copy);
  return read_lent(peer, e, 0, bytes, to, copy);
}

bool Mailbox::read_lent(int peer, const Entry& e, size_t begin, size_t bytes, std::byte* to,
                        CopyBytes copy) const {
  const uint64_t from = loan_of(e).offset + begin;
  if (e.slot == kRemote) return read_private(peer, from, to + begin, bytes);
  // Not at once: memcpy of many MiB passes by the caches, which is the caller's choice.
  for (size_t done = 0; done < bytes; done += layout_.slot_bytes)
    copy(to + begin + done, region_->base + from + done, std::min(layout_.slot_bytes, bytes - done));
  return true;
}

// Whether the peer has a message of ours to fetch: then it does not only wait.
bool Mailbox::reads(int peer) const {
  const Box& box = boxes_[peer];
  const Entry& last = entry(box.out, box.out_next - 1);
  return box.out_next && last.full.load(std::memory_order_acquire) && is_fetched(last);
}

// Lets the sender write into `to`; false: it should not, or may not.
bool Mailbox::share(int peer, Sharing& sharing, std::byte* to, size_t bytes) {
  const size_t each = Sharing::piece_bytes(bytes);
  const auto pieces = static_cast<uint32_t>((bytes + each - 1) / each);
  const bool writes = area(peer).reads.load(std::memory_order_relaxed) >> rank_ & 1;
  if (world_ > usable_cpus() || !writes || reads(peer)) return false;
  for (uint32_t i = 0; i < pieces; ++i)
    sharing.targets[i] = {to + i * each, std::min(each, bytes - i * each)};
  sharing.taken.store(0, std::memory_order_relaxed), sharing.written.store(0, std::memory_order_relaxed);
  sharing.refused.store(0, std::memory_order_relaxed);
  sharing.pieces.store(pieces, std::memory_order_release);
  ring_bell(peer);
  return true;
}

// True when all of the message is there.
bool Mailbox::read_pieces(int peer, Entry& e, std::byte* to, CopyBytes copy) {
  Box& box = boxes_[peer];
  Sharing& sharing = sharing_of(e);
  const uint32_t pieces = sharing.pieces.load(std::memory_order_relaxed);
  const auto read = [&](uint32_t piece) {
    const iovec& target = sharing.targets[piece];
    const size_t begin = static_cast<std::byte*>(target.iov_base) - to;
    return read_lent(peer, e, begin, target.iov_len, to, copy);
  };
  for (; box.reading || sharing.take(pieces); box.reading = false, ++box.read) {
    box.reading = true;
    if (!read(box.read)) return false;
  }
  if (box.read + sharing.written.load(std::memory_order_acquire) < pieces) return false;
  const uint64_t refused = sharing.refused.load(std::memory_order_relaxed);
  for (uint32_t piece = 0; piece < pieces; ++piece)
    if (refused >> piece & 1 && !read(piece)) return false;
  sharing.pieces.store(0, std::memory_order_relaxed), box.read = 0;
  return true;
}

// The sender's part, once the receiver lets it.
void Mailbox::write_pieces(int peer, Entry& e) {
  Sharing& sharing = sharing_of(e);
  const uint32_t pieces = sharing.pieces.load(std::memory_order_acquire);
  if (!pieces) return;
  const Loan loan = loan_of(e);
  const size_t each = Sharing::piece_bytes(loan.bytes);
  const uint64_t from = loan.offset + (e.slot == kStored ? reinterpret_cast<uint64_t>(region_->base) : 0);
  while (sharing.take(pieces)) {
    const uint32_t written = sharing.written.load(std::memory_order_relaxed), piece = pieces - 1 - written;
    const size_t begin = piece * each, bytes = std::min(each, loan.bytes - begin);
    if (!write_process(who(peer).first, from + begin, bytes, sharing.targets[piece]))
      sharing.refused.fetch_or(uint64_t{1} << piece, std::memory_order_relaxed);
    sharing.written.store(written + 1, std::memory_order_release);
    ring_bell(peer);
  }
}

// After a fault the caller's memory is its own again. A write that has begun ends by itself, soon; one whose
// writer was stopped before finds nowhere to write to.
void Mailbox::revoke(int peer, std::span<iovec> targets, const std::function<bool()>& ended) {
  std::fill(targets.begin(), targets.end(), iovec{});
  std::atomic_thread_fence(std::memory_order_seq_cst);
  soon(100ms, [&] { return ended() || !gone(peer).empty(); });
}

void Mailbox::revoke_pieces(int peer) {
  Box& box = boxes_[peer];
  Entry& e = entry(box.in, box.in_next);
  if (!e.full.load(std::memory_order_acquire) || !is_fetched(e)) return;
  Sharing& sharing = sharing_of(e);
  const uint32_t pieces = sharing.pieces.load(std::memory_order_relaxed);
  if (!pieces) return;
  revoke(peer, sharing.targets, [&] {
    const uint32_t theirs = std::min(sharing.taken.load(), pieces) - box.read - box.reading;
    return sharing.written.load(std::memory_order_acquire) >= theirs;
  });
}

}  // namespace gpucomm
