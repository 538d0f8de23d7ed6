// What plans with coded messages share: pieces are encoded, travel and are decoded in numbered slots, each of
// which is written again when all that used it is done.
#pragma once
#include <utility>
#include <vector>

#include "plans/plan.h"

namespace gpucomm {

class CodedSteps {
 public:
  // Lanes in this order: what has arrived is forwarded before it is decoded.
  enum Lane { kReceive = 0, kSend = 1, kCode = 2 };

  // A run of slots, used in turn.
  struct Slots {
    Space space;
    int first, count, next = 0;
  };

  explicit CodedSteps(Plan& plan) : plan_(plan) {}

  Slots slots(Space space, int count) {
    int& all = space == Space::coded ? plan_.coded_slots : plan_.scratch_slots;
    all += count;
    users_[space == Space::coded].resize(all);
    return {space, all - count, count};
  }

  // Where something is, and the step that put it there (-1: nobody).
  struct At {
    Place place;
    int by = -1;
  };

  // What this rank has before the call.
  At own() const { return {{plan_.in_place ? Space::output : Space::input}}; }

  At encode(const At& from, int piece, Slots& slots, bool final = false) {
    Step step{.kind = StepKind::encode, .piece = piece, .source = from.place, .lane = kCode};
    step.final = final;
    return write(slots, std::move(step), from);
  }

  void send(const At& from, int piece, int to, int round) {
    Step step{.kind = StepKind::send, .piece = piece, .source = from.place, .peers = {to}, .lane = kSend};
    step.round = round;
    add(std::move(step), {from.by});
  }

  At receive(int piece, int from, int round, Slots& slots) {
    Step step{.kind = StepKind::recv, .piece = piece, .peers = {from}, .lane = kReceive};
    step.round = round;
    return write(slots, std::move(step), {});
  }

  // `behind`: another step that comes first.
  At decode(const At& from, int piece, bool final, int behind = -1) {
    Step step{.kind = StepKind::decode, .piece = piece, .source = from.place, .target = {Space::output}};
    step.lane = kCode, step.final = final;
    return {step.target, add(std::move(step), {from.by, behind})};
  }
  At decode(const At& from, int piece, Slots& slots) {
    return write(slots, {.kind = StepKind::decode, .piece = piece, .source = from.place, .lane = kCode},
                 from);
  }

  At copy(const At& from, int piece, Slots& slots) {
    return write(slots, {.kind = StepKind::copy, .piece = piece, .source = from.place, .lane = kCode}, from);
  }
  At copy_out(const At& from, int piece) {
    Step step{.kind = StepKind::copy, .piece = piece, .source = from.place, .target = {Space::output}};
    step.lane = kCode;
    return {step.target, add(std::move(step), {from.by})};
  }

  // into += from; of a coded `from` into a dense place what it decodes to.
  At fold(const At& from, const At& into, int piece, bool final) {
    const bool decodes = coded(from.place) && !coded(into.place);
    Step step{.kind = decodes ? StepKind::decode_reduce : StepKind::reduce, .piece = piece};
    step.source = from.place, step.target = into.place, step.lane = kCode, step.final = final;
    return {into.place, add(std::move(step), {from.by, into.by})};
  }

 private:
  std::vector<int>* users(const Place& place) {
    if (place.space != Space::coded && place.space != Space::scratch) return nullptr;
    return &users_[place.space == Space::coded][place.slot];
  }

  At write(Slots& slots, Step step, const At& from) {
    step.target = {slots.space, slots.first + slots.next++ % slots.count};
    auto& before = users_[slots.space == Space::coded][step.target.slot];
    step.after = std::exchange(before, {});
    const Place target = step.target;
    return {target, add(std::move(step), {from.by})};
  }

  int add(Step step, std::vector<int> after) {
    for (const int before : after)
      if (before >= 0) step.after.push_back(before);
    const Place source = step.source, target = step.target;
    const bool reads = step.kind != StepKind::recv, writes = step.kind != StepKind::send;
    const int index = plan_.add(std::move(step));
    if (auto* all = reads ? users(source) : nullptr) all->push_back(index);
    if (auto* all = writes ? users(target) : nullptr) all->push_back(index);
    return index;
  }

  Plan& plan_;
  std::vector<std::vector<int>> users_[2];  // of scratch and of coded slots
};

}  // namespace gpucomm
