// The entries of a mailbox's rings.
#pragma once
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/aligned.h"
#include "transports/mailbox.h"

namespace gpucomm {

struct Entry {  // of kEntryBytes; the payload of a short message follows the header in the same line
  // 0: the sender's to fill; else the receiver's: 1 + where in the slot it begins.
  std::atomic<uint64_t> full;
  uint64_t tag;
  uint32_t bytes;
  int32_t slot;    // or kInline, kInPlace
  uint64_t stamp;  // when it may be seen; 0: at once
  std::byte payload[];
};
static_assert(sizeof(Entry) == 32);
inline constexpr int32_t kInline = -1;   // the payload is here
inline constexpr int32_t kInPlace = -2;  // the payload is a Loan: where the message lies
inline constexpr int32_t kAnswer = -3;   // as kInPlace, but its bytes are where they belong already
inline constexpr int32_t kRemote = -4;   // as kInPlace, in the sender's private memory
inline constexpr int32_t kStored = -5;   // as kInPlace, but to be fetched as a whole, like kRemote
inline constexpr int32_t kFolded = -6;   // as kRemote, but to be folded, piece by piece
struct Loan {
  uint64_t offset, bytes;  // in the region, or of private memory: an address
  uint32_t answer;         // as in Chunk
};
// Shorter messages are staged: a lender waits for its reader, which costs more than a short copy.
inline constexpr size_t kLeastLoan = 16 << 10;
inline constexpr size_t kLeastRemote = 16 << 10;
inline constexpr size_t kLeastLong = 256 << 10;  // from here on huge pages are looked up, too
inline constexpr size_t kEntryBytes = round_up(sizeof(Entry) + kInlineBytes, 64);

inline Loan loan_of(const Entry& e) {
  Loan loan;
  std::memcpy(&loan, e.payload, sizeof loan);
  return loan;
}

inline bool is_fetched(const Entry& e) { return e.slot == kRemote || e.slot == kStored; }
inline bool is_private(int32_t kind) { return kind == kRemote || kind == kFolded; }

// A message in private memory, or a part of one, that its receiver folds piece by piece, while its caches
// hold them, and answers in the same pieces.
struct Pieces {
  static constexpr size_t kMost = 60, kPieceBytes = 256 << 10, kMostBytes = kMost * kPieceBytes;
  std::atomic<uint32_t> begun, ended;  // answers written
  iovec targets[kMost];                // where they belong: as in Sharing
};

inline Pieces& pieces_of(Entry& e) {
  return *reinterpret_cast<Pieces*>(reinterpret_cast<std::byte*>(&e) + 64);
}
static_assert(64 + sizeof(Pieces) <= kEntryBytes);

inline size_t piece_at(const Loan& loan, size_t begin) {
  return std::min<size_t>(loan.bytes - begin, Pieces::kPieceBytes);
}

// A message that both ends copy: the receiver reads pieces from the front on, its sender, which waits for it,
// writes others from the back, until they meet.
struct Sharing {
  static constexpr size_t kMost = 60, kFew = 2;
  static constexpr size_t kLongPiece = 16 << 20;  // takes some milliseconds, for which a fault waits
  // Of shared memory the receiver's copy takes less than the kernel's: only long ones gain by sharing.
  static constexpr size_t kLeast = 64 << 10, kLeastStored = 2 << 20;
  std::atomic<uint32_t> pieces;   // 0: the receiver reads alone
  std::atomic<uint32_t> taken;    // by either
  std::atomic<uint32_t> written;  // by the sender, or refused to it
  std::atomic<uint64_t> refused;  // which of these, as bits: the receiver reads them
  // Where each belongs. The kernel looks here when the sender's write begins, so once the receiver has
  // emptied them no write begins any more, whenever a stopped sender wakes.
  iovec targets[kMost];

  static size_t piece_bytes(size_t bytes) {
    constexpr size_t kPage = 4 << 10;
    const auto share = [=](size_t pieces) { return (bytes + pieces - 1) / pieces; };
    const size_t piece = std::max({kLeast / 2, std::min(share(kFew), kLongPiece), share(kMost)});
    return round_up(piece, kPage);
  }
  // The next piece is the caller's; false: there is none.
  bool take(uint32_t all) { return taken.load(std::memory_order_relaxed) < all && taken.fetch_add(1) < all; }
};

inline Sharing& sharing_of(Entry& e) {
  return *reinterpret_cast<Sharing*>(reinterpret_cast<std::byte*>(&e) + 64);
}
static_assert(sizeof(Entry) + sizeof(Loan) <= 64 && 64 + sizeof(Sharing) <= kEntryBytes);

}  // namespace gpucomm
