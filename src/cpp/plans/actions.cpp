#include "plans/actions.h"

namespace gpucomm {

// Makes this plan's lanes; returns the place of each of its steps.
std::vector<int> Actions::place(const Plan& plan) {
  std::vector<int> counts;
  for (const Step& step : plan.steps) {
    if (step.lane >= static_cast<int>(counts.size())) counts.resize(step.lane + 1);
    ++counts[step.lane];
  }
  int begin = static_cast<int>(actions_.size());
  std::vector<int> next;
  for (const int count : counts) {
    next.push_back(begin);
    lanes_.push_back({.rank = plan.rank, .next = begin, .end = begin + count});
    begin += count;
  }
  std::vector<int> places;
  for (const Step& step : plan.steps) places.push_back(next[step.lane]++);
  return places;
}

void Actions::add(const Plan& plan, const std::vector<size_t>& offset_bytes, double coded) {
  if (actions_.empty()) actions_.reserve(plan.steps.size() * plan.world);  // most ranks do about as much
  const int first_lane = static_cast<int>(lanes_.size()), first = static_cast<int>(actions_.size());
  const std::vector<int> places = place(plan);
  actions_.resize(first + plan.steps.size());
  std::vector<int> steps(places.size());
  for (size_t i = 0; i < places.size(); ++i) steps[places[i] - first] = static_cast<int>(i);
  for (const int i : steps) {
    const Step& step = plan.steps[i];
    Action& action = actions_[places[i]];
    action.bytes = offset_bytes[step.piece + step.pieces] - offset_bytes[step.piece];
    if (travels(step.kind) && (gpucomm::coded(step.source) || gpucomm::coded(step.target)))
      action.bytes = static_cast<size_t>(coded * static_cast<double>(action.bytes) + 0.5);
    action.step = i, action.lane = first_lane + step.lane, action.kind = step.kind;
    action.first_after = static_cast<int>(after_.size());
    for (const int before : step.after) after_.push_back(places[before]);
    if (step.kind == StepKind::send) meet(plan.rank, step.peers[0], places[i], true);
    if (!receives(step.kind)) continue;
    action.sources = action.missing = static_cast<int>(step.peers.size());
    for (const int peer : step.peers) meet(peer, plan.rank, places[i], false);
  }
}

void Actions::meet(int from, int to, int index, bool sends) {
  Pair& pair = pairs_[static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to)];
  if (sends && !pair.opened) actions_[index].opens = pair.opened = true;
  if (pair.first == pair.unmet.size() || pair.sends == sends) {
    pair.sends = sends;
    pair.unmet.push_back(index);
    return;
  }
  const int other = pair.unmet[pair.first++];
  actions_[sends ? index : other].match = sends ? other : index;
  if (pair.first == pair.unmet.size()) pair.unmet = {}, pair.first = 0;
}

}  // namespace gpucomm
