#include "devices/apart.h"

namespace gpucomm {
namespace {

struct Span {
  const std::byte* begin;
  size_t bytes;
  size_t owner;  // which of them uses it
  bool written;
};
using Spans = std::vector<Span>;

void add(Spans& spans, size_t owner, const std::byte* begin, size_t bytes, bool written) {
  if (bytes) spans.push_back({begin, bytes, owner, written});
}

size_t dense_bytes(const CodedPiece& piece) { return piece.count * size_of(piece.dtype); }
size_t slot_bytes(const CodedPiece& piece) {
  return sizeof(uint64_t) + piece.codec->max_bytes(piece.count, piece.dtype);
}

void add(Spans& spans, size_t owner, const Copy& copy) {
  add(spans, owner, copy.from, copy.bytes, false), add(spans, owner, copy.to, copy.bytes, true);
}
void add(Spans& spans, size_t owner, const Fold& fold) {
  const size_t bytes = fold.count * size_of(fold.dtype);
  for (const std::byte* source : fold.sources) add(spans, owner, source, bytes, false);
  for (const std::byte* to : fold.destinations) add(spans, owner, to, bytes, true);
}
void add(Spans& spans, size_t owner, const Encoding& one) {
  add(spans, owner, one.dense, dense_bytes(one.piece), false);
  add(spans, owner, one.slot, slot_bytes(one.piece), true);
}
void add(Spans& spans, size_t owner, const Decoding& one) {
  add(spans, owner, one.slot, slot_bytes(one.piece), false);
  add(spans, owner, one.dense, dense_bytes(one.piece), true);
}
void add(Spans& spans, size_t owner, const Recoding& one) {
  add(spans, owner, one.from, slot_bytes(one.piece), false);
  add(spans, owner, one.own, dense_bytes(one.piece), false);
  add(spans, owner, one.to, slot_bytes(one.piece), true);
}

bool clash(const Span& a, const Span& b) {
  return a.owner != b.owner && (a.written || b.written) && a.begin < b.begin + b.bytes &&
         b.begin < a.begin + a.bytes;
}

}  // namespace

template <class One>
void check_apart(const std::vector<One>& all) {
  Spans spans;
  for (size_t i = 0; i < all.size(); ++i) add(spans, i, all[i]);
  for (size_t a = 0; a < spans.size(); ++a)
    for (size_t b = 0; b < a; ++b) GPUCOMM_CHECK(!clash(spans[a], spans[b]));
}

template void check_apart(const std::vector<Copy>& all);
template void check_apart(const std::vector<Fold>& all);
template void check_apart(const std::vector<Encoding>& all);
template void check_apart(const std::vector<Decoding>& all);
template void check_apart(const std::vector<Recoding>& all);

}  // namespace gpucomm
