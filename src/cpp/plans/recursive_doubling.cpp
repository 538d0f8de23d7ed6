// recursive_doubling: ranks exchange their coded partial sums with a partner twice as far away at each stage.
// Both add what the two messages decode to, the lower rank's first, so all ranks have the same bits; with an
// additive codec coded sums are added. Where the world is no power of two, the first ranks pair up before:
// the odd one gives its array to the even one, and gets both messages of the last stage.
// Source: gZCCL (arXiv:2308.05199); adding one's own decoded message: ours.
// Cost: log2(p) (alpha + n c beta), c the codec's share of the bytes.
#include <algorithm>
#include <bit>

#include "plans/coded.h"

namespace gpucomm {
namespace {

using At = CodedSteps::At;
using Slots = CodedSteps::Slots;

class RecursiveDoubling {
 public:
  RecursiveDoubling(const PlanRequest& request, Plan& plan)
      : plan_(plan),
        steps_(plan),
        rank_(request.rank),
        additive_(request.additive),
        stages_(std::bit_width(static_cast<unsigned>(request.world)) - 1),
        extra_(request.world - (1 << stages_)),
        paired_(rank_ < 2 * extra_),
        place_(paired_ ? rank_ / 2 : rank_ - extra_),
        encoded_(steps_.slots(Space::coded, 4)),
        received_(steps_.slots(Space::coded, 4)) {}

  void run() {
    for (int first = 0; first < plan_.segments; first += 2) {
      const int end = std::min(first + 2, plan_.segments);
      for (int k = first; k < end; ++k) begin(k);
      for (int stage = 0; stage < stages_; ++stage)
        for (int k = first; k < end && !guest(); ++k) exchange(stage, k);
      for (int k = first; k < end && paired_; ++k) settle(k);
    }
  }

 private:
  bool guest() const { return paired_ && rank_ % 2; }
  int rank_at(int place) const { return place < extra_ ? 2 * place : place + extra_; }

  // Equal at both ends. Stages are numbered from 1; before them comes what guests give, behind them what
  // they get.
  int round(int stage, int segment) const {
    const int pair = segment / 2 * 2, width = std::min(2, plan_.segments - pair);
    return pair * (stages_ + 3) + stage * width + segment - pair;
  }

  At& sum(int segment) { return sum_[segment % 2]; }

  void begin(int k) {
    sum(k) = steps_.own();
    if (guest() || additive_) sum(k) = steps_.encode(sum(k), k, encoded_);
    if (guest()) return steps_.send(sum(k), k, rank_ - 1, round(0, k));
    if (!paired_) return;
    const At arrived = steps_.receive(k, rank_ + 1, round(0, k), received_);
    if (!additive_ && !plan_.in_place) sum(k) = steps_.copy_out(sum(k), k);
    sum(k) = additive_ ? steps_.fold(sum(k), arrived, k, false) : steps_.fold(arrived, sum(k), k, false);
  }

  void exchange(int stage, int k) {
    const int peer = rank_at(place_ ^ 1 << stage);
    const At own = additive_ ? sum(k) : steps_.encode(sum(k), k, encoded_);
    steps_.send(own, k, peer, round(stage + 1, k));
    const At arrived = steps_.receive(k, peer, round(stage + 1, k), received_);
    last_[k % 2][0] = rank_ < peer ? own : arrived, last_[k % 2][1] = rank_ < peer ? arrived : own;
    if (additive_)
      sum(k) = steps_.fold(own, arrived, k, false);
    else
      add(k, stage == stages_ - 1, plan_.in_place && stage == 0);
    if (additive_ && stage == stages_ - 1) steps_.decode(sum(k), k, true);
  }

  // `waits`: not before both messages are there. Until the first one has come, and was found to be of this
  // call, x stays as it is.
  void add(int k, bool final, bool waits) {
    const auto& [first, second] = last_[k % 2];
    sum(k) = steps_.fold(second, steps_.decode(first, k, false, waits ? second.by : -1), k, final);
  }

  // The guest ends as its host did.
  void settle(int k) {
    const int messages = additive_ ? 1 : 2;
    for (int i = 0; i < messages; ++i) {
      At& what = additive_ ? sum(k) : last_[k % 2][i];
      const int at = round(stages_ + 1 + i, k);
      if (guest())
        what = steps_.receive(k, rank_ - 1, at, received_);
      else
        steps_.send(what, k, rank_ + 1, at);
    }
    if (!guest()) return;
    if (additive_)
      steps_.decode(sum(k), k, true);
    else
      add(k, true, false);
  }

  Plan& plan_;
  CodedSteps steps_;
  int rank_;
  bool additive_;
  int stages_, extra_;  // extra: how many ranks a power of two leaves over
  bool paired_;
  int place_;  // among those that take part in all stages
  Slots encoded_, received_;
  At sum_[2], last_[2][2];  // of the two segments on their way; the messages of the last stage, in rank order
};

void build(const PlanRequest& request, Plan& plan) {
  plan.chunks = 1;
  RecursiveDoubling(request, plan).run();
}

const Registry<Algorithm>::Add add{
    "recursive_doubling",
    {.summary =
         "ranks exchange coded partial sums with partners 1, 2, 4, ... away: as many lossy passes as stages",
     .source = "arXiv:2308.05199; ours: the same bits on all ranks",
     .collectives = {Collective::all_reduce},
     .segmented = true,
     .build = build,
     .coded = true,
     .repeats = true}};

}  // namespace
}  // namespace gpucomm
