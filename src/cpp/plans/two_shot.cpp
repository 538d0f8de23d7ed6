// two_shot: every rank sends each chunk, coded, to the rank that folds it, which sends the sum, coded again,
// to all: two lossy passes whatever the world; with an additive codec coded chunks are added, one pass. Who
// runs the plan adds 16-bit floats up in float32 and rounds the sum once (engine/wide_sums.h).
// Source: ours, as direct.
// Cost: all_reduce 2(p-1)(alpha + n/p c beta), c the codec's share of the bytes.
#include "plans/coded.h"

namespace gpucomm {
namespace {

using At = CodedSteps::At;
using Slots = CodedSteps::Slots;

class TwoShot {
 public:
  TwoShot(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        steps_(plan),
        world_(request.world),
        rank_(request.rank),
        additive_(request.additive),
        own_(steps_.own()),
        encoded_(steps_.slots(Space::coded, world_)),
        received_(steps_.slots(Space::coded, world_)) {}

  void run() {
    const bool folds = reduces(plan_.collective), gathers = !scatters(plan_.collective);
    int round = 0;
    for (int k = 0; k < plan_.segments; ++k) {
      At sum = own_;
      if (folds) sum = fold(k, round++);
      if (gathers) gather(k, sum, round++);
    }
  }

 private:
  int peer(int offset) const { return around(rank_, offset, world_); }

  At fold(int k, int round) {
    const int mine = plan_.piece(rank_, k);
    for (int i = 1; i < world_; ++i) {
      const int piece = plan_.piece(peer(i), k);
      steps_.send(steps_.encode(own_, piece, encoded_), piece, peer(i), round);
    }
    At sum = own_;
    if (additive_)
      sum = steps_.encode(own_, mine, encoded_);
    else if (!plan_.in_place)
      sum = steps_.copy_out(own_, mine);
    for (int i = 1; i < world_; ++i) {
      const At arrived = steps_.receive(mine, peer(-i), round, received_);
      sum = steps_.fold(arrived, sum, mine, !additive_ && i == world_ - 1);
    }
    if (additive_ && scatters(plan_.collective)) steps_.decode(sum, mine, true);
    return sum;
  }

  void gather(int k, const At& from, int round) {
    const int mine = plan_.piece(rank_, k);
    const bool folds = reduces(plan_.collective), added = folds && additive_;
    const At coded = added ? from : steps_.encode(from, mine, encoded_, folds);
    for (int i = 1; i < world_; ++i) steps_.send(coded, mine, peer(i), round);
    steps_.decode(coded, mine, added);
    for (int i = 1; i < world_; ++i) {
      const int piece = plan_.piece(peer(-i), k);
      steps_.decode(steps_.receive(piece, peer(-i), round, received_), piece, added);
    }
  }

  Plan& plan_;
  CodedSteps steps_;
  int world_, rank_;
  bool additive_;
  At own_;
  Slots encoded_, received_;
};

void build(const PlanRequest& request, Plan& plan) {
  plan.chunks = request.world;
  TwoShot(request, plan).run();
}

const Registry<Algorithm>::Add add{
    "two_shot",
    {.summary = "coded chunks go straight to the rank that folds them, coded sums to all: two lossy passes",
     .source = "ours",
     .collectives = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter},
     .segmented = true,
     .build = build,
     .coded = true}};

}  // namespace
}  // namespace gpucomm
