// Messages in private memory that their receiver folds (cross-memory attach): it copies a piece, folds it,
// and where the sender is to have the result, writes that to where it belongs at once.
#include "base/error.h"
#include "transports/mailbox.h"
#include "transports/mailbox_entry.h"

namespace gpucomm {

void Mailbox::open_pieces(Entry& e, const Loan& loan, std::byte* answer_to) {
  Pieces& pieces = pieces_of(e);
  pieces.begun.store(0, std::memory_order_relaxed), pieces.ended.store(0, std::memory_order_relaxed);
  if (!loan.answer) return;
  size_t i = 0;
  for (size_t begin = 0; begin < loan.bytes; begin += Pieces::kPieceBytes)
    pieces.targets[i++] = {answer_to + begin, piece_at(loan, begin)};
}

// False: not now, perhaps the peer has ended.
bool Mailbox::copy_piece(int peer, const Entry& e) {
  Box& box = boxes_[peer];
  if (!box.piece && !(box.piece = allocate_aligned(4 << 10, Pieces::kPieceBytes)))
    fail(ErrorKind::unavailable, "rank ", rank_, " has no memory for the pieces of rank ", peer,
         "'s messages");
  const Loan loan = loan_of(e);
  const uint64_t from = loan.offset + box.in_place;
  if (!box.copied) box.copied = read_private(peer, from, box.piece.get(), piece_at(loan, box.in_place));
  return box.copied;
}

bool Mailbox::answer(int peer, const std::byte* from) {
  Box& box = boxes_[peer];
  Entry& e = entry(box.in, box.in_next);
  Pieces& pieces = pieces_of(e);
  const auto piece = static_cast<uint32_t>(box.in_place / Pieces::kPieceBytes);
  // Before the kernel looks where the piece lies: see revoke_answers.
  pieces.begun.store(piece + 1, std::memory_order_seq_cst);
  const bool written = write_process(who(peer).first, reinterpret_cast<uint64_t>(from), box.chunk.bytes,
                                     pieces.targets[piece]);
  pieces.ended.store(piece + 1, std::memory_order_release);
  return written;
}

void Mailbox::revoke_answers(int peer) {
  Box& box = boxes_[peer];
  for (uint32_t i = 0; i < kRingEntries; ++i) {
    Entry& e = entry(box.out, i);
    if (!e.full.load(std::memory_order_acquire) || e.slot != kFolded || !loan_of(e).answer) continue;
    Pieces& pieces = pieces_of(e);
    revoke(peer, pieces.targets,
           [&] { return pieces.ended.load(std::memory_order_acquire) == pieces.begun.load(); });
  }
}

}  // namespace gpucomm
