// coded_ring: the ring with messages in coded form. A gathered chunk is encoded once by its owner, forwarded
// as it is, and decoded under the next hop's transfer, by its owner too, so all ranks have the same bits. A
// folded chunk is decoded onto the own operand and encoded again at each hop; with an additive codec each
// rank's operand is encoded once and coded sums are added.
// Source: Zhou et al. 2023 (IPDPS), collective-level compression; hZCCL (arXiv:2408.07422) for the sums.
#include <algorithm>

#include "plans/coded.h"

namespace gpucomm {
namespace {

using At = CodedSteps::At;
using Slots = CodedSteps::Slots;

// So many segments travel at a time at the most, through all hops: one is on the wire while others are coded.
constexpr int kMostAtOnce = 4;

class CodedRing {
 public:
  CodedRing(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        steps_(plan),
        hops_(request.world - 1),
        rank_(request.rank),
        at_once_(request.lends ? 1 : kMostAtOnce),
        folds_(reduces(request.collective)),
        gathers_(!scatters(request.collective)),
        additive_(request.additive),
        own_(steps_.own()),
        encoded_(steps_.slots(Space::coded, 2 * at_once_)),
        received_(steps_.slots(Space::coded, 2 * at_once_)) {
    if (folds_ && additive_) addends_ = steps_.slots(Space::coded, 2 * at_once_);
    if (!gathers_ && !additive_ && hops_ > 1) sums_ = steps_.slots(Space::scratch, 2 * at_once_);
  }

  void run() {
    for (int k = 0; k < at_once_; ++k) first_message(k);
    for (int first = 0; first < plan_.segments; first += at_once_) {
      const int end = std::min(first + at_once_, plan_.segments);
      for (int hop = 0; folds_ && hop < hops_; ++hop)
        for (int k = first; k < end; ++k) fold(hop, k);
      for (int k = first; folds_ && gathers_ && k < end; ++k) start_gathering(k);
      for (int hop = 0; gathers_ && hop < hops_; ++hop)
        for (int k = first; k < end; ++k) gather(hop, k);
    }
  }

 private:
  int chunk(int offset) const { return around(rank_, offset, hops_ + 1); }
  int total_hops() const { return hops_ * (folds_ + gathers_); }

  // Of a segment's message at this of all its hops, equal at both ends.
  int round(int hop, int segment) const {
    const int first = segment / at_once_ * at_once_, width = std::min(at_once_, plan_.segments - first);
    return first * total_hops() + hop * width + segment - first;
  }

  void send(const At& what, int piece, int hop, int segment) {
    steps_.send(what, piece, chunk(1), round(hop, segment));
  }
  At receive(int piece, int hop, int segment) {
    return steps_.receive(piece, chunk(-1), round(hop, segment), received_);
  }

  void first_message(int segment) {
    if (segment >= plan_.segments) return;
    if (!folds_) return start_gathering(segment);
    const int piece = plan_.piece(chunk(-1), segment);
    send(steps_.encode(own_, piece, encoded_), piece, 0, segment);
  }

  // Chunk c is folded on its way c+1, c+2, ..., c.
  void fold(int hop, int segment) {
    const bool last = hop == hops_ - 1;
    const int piece = plan_.piece(chunk(-2 - hop), segment);
    const At arrived = receive(piece, hop, segment);
    // What starts next is encoded while the last hop of what ends is on the wire.
    if (last && !gathers_) first_message(segment + at_once_);
    if (additive_) {
      sum_[segment % at_once_] = steps_.fold(arrived, steps_.encode(own_, piece, addends_), piece, false);
      if (last && !gathers_) steps_.decode(sum_[segment % at_once_], piece, true);
    } else {
      sum_[segment % at_once_] = steps_.fold(arrived, operand(piece, last), piece, last);
    }
    if (last) return;
    const At& sum = sum_[segment % at_once_];
    send(additive_ ? sum : steps_.encode(sum, piece, encoded_), piece, hop + 1, segment);
  }

  // Where this rank's part of a partial sum may be overwritten by the sum.
  At operand(int piece, bool last) {
    if (!last && !gathers_) return steps_.copy(own_, piece, sums_);
    return plan_.in_place ? own_ : steps_.copy_out(own_, piece);
  }

  void start_gathering(int segment) {
    const int piece = plan_.piece(rank_, segment);
    const At& from = folds_ ? sum_[segment % at_once_] : own_;
    const At coded = from.place.space == Space::coded ? from : steps_.encode(from, piece, encoded_, folds_);
    send(coded, piece, folds_ ? hops_ : 0, segment);
    steps_.decode(coded, piece, folds_ && additive_);
  }

  void gather(int hop, int segment) {
    const bool last = hop == hops_ - 1;
    const int piece = plan_.piece(chunk(-1 - hop), segment), all = hop + (folds_ ? hops_ : 0);
    const At arrived = receive(piece, all, segment);
    if (!last) send(arrived, piece, all + 1, segment);
    if (last) first_message(segment + at_once_);
    steps_.decode(arrived, piece, folds_ && additive_);
  }

  Plan& plan_;
  CodedSteps steps_;
  int hops_, rank_, at_once_;
  bool folds_, gathers_, additive_;
  At own_;
  Slots encoded_, received_, addends_{}, sums_{};
  At sum_[kMostAtOnce];  // of the segments on their way
};

void build(const PlanRequest& request, Plan& plan) {
  plan.chunks = request.world;
  CodedRing(request, plan).run();
}

const Registry<Algorithm>::Add add{
    "coded_ring",
    {.summary = "the ring with coded messages: gathered chunks are encoded once, folded ones at each hop or, "
                "by an additive codec, once",
     .source = "Zhou et al. 2023 (IPDPS); arXiv:2408.07422",
     .collectives = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter},
     .segmented = true,
     .build = build,
     .coded = true}};

}  // namespace
}  // namespace gpucomm
