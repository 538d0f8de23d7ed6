// ring_per_hop: the ring as if each message were compressed by its link: encoded before every hop, decoded
// after it, and only then folded, one after the other. What coded_ring is compared with. A gathered chunk is
// coded anew at each hop, so with most codecs the ranks' results differ: it offers no all_reduce, and
// "auto" leaves it.
// Source: Zhou et al. 2023 (IPDPS), the point-to-point scheme.
#include "plans/coded.h"

namespace gpucomm {
namespace {

using At = CodedSteps::At;
using Slots = CodedSteps::Slots;

class RingPerHop {
 public:
  RingPerHop(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        steps_(plan),
        hops_(request.world - 1),
        rank_(request.rank),
        additive_(request.additive),
        own_(steps_.own()),
        encoded_(steps_.slots(Space::coded, 2)),
        received_(steps_.slots(Space::coded, 2)) {
    if (reduces(plan.collective) && hops_ > 1 && !additive_) sums_ = steps_.slots(Space::scratch, 2);
  }

  void run() {
    for (int k = 0; k < plan_.segments; ++k) {
      if (!reduces(plan_.collective))
        gather(k);
      else
        additive_ ? add(k) : fold(k);
    }
  }

 private:
  int chunk(int offset) const { return around(rank_, offset, hops_ + 1); }

  // Sends piece `out` as it is held, and returns piece `in` as it comes.
  At pass(const At& held, int out, int in, int hop, int k) {
    return pass_coded(steps_.encode(held, out, encoded_), out, in, hop, k);
  }
  At pass_coded(const At& coded, int out, int in, int hop, int k) {
    const int round = k * hops_ + hop;
    steps_.send(coded, out, chunk(1), round);
    return steps_.receive(in, chunk(-1), round, received_);
  }

  void gather(int k) {
    At held = own_;
    for (int hop = 0; hop < hops_; ++hop) {
      const int in = plan_.piece(chunk(-1 - hop), k);
      held = steps_.decode(pass(held, plan_.piece(chunk(-hop), k), in, hop, k), in, false);
    }
    if (!plan_.in_place) steps_.copy_out(own_, plan_.piece(rank_, k));
  }

  void fold(int k) {
    At held = own_;
    for (int hop = 0; hop < hops_; ++hop) {
      const bool last = hop == hops_ - 1;
      const int in = plan_.piece(chunk(-2 - hop), k);
      const At arrived = pass(held, plan_.piece(chunk(-1 - hop), k), in, hop, k);
      if (last)
        steps_.fold(arrived, plan_.in_place ? own_ : steps_.copy_out(own_, in), in, true);
      else
        held = steps_.fold(own_, steps_.decode(arrived, in, sums_), in, false);
    }
  }

  // What is additive was made to be added coded: sums may be beyond what it encodes.
  void add(int k) {
    int out = plan_.piece(chunk(-1), k);
    At held = steps_.encode(own_, out, encoded_);
    for (int hop = 0; hop < hops_; ++hop) {
      const int in = plan_.piece(chunk(-2 - hop), k);
      const At arrived = pass_coded(held, out, in, hop, k);
      held = steps_.fold(arrived, steps_.encode(own_, in, encoded_), in, false), out = in;
    }
    steps_.decode(held, out, true);
  }

  Plan& plan_;
  CodedSteps steps_;
  int hops_, rank_;
  bool additive_;
  At own_;
  Slots encoded_, received_, sums_{};
};

void build(const PlanRequest& request, Plan& plan) {
  plan.chunks = request.world;
  RingPerHop(request, plan).run();
}

const Registry<Algorithm>::Add add{
    "ring_per_hop",
    {.summary = "the ring with messages coded anew at each hop; for comparison",
     .source = "Zhou et al. 2023 (IPDPS)",
     .collectives = {Collective::all_gather, Collective::reduce_scatter},
     .segmented = true,
     .build = build,
     .coded = true,
     .named_only = true}};

}  // namespace
}  // namespace gpucomm
