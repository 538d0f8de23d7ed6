#include "engine/wide_sums.h"

#include <algorithm>
#include <map>
#include <utility>

namespace gpucomm {
namespace {

bool same_target(const Step& a, const Step& b) {
  return a.target == b.target && a.piece == b.piece && a.pieces == b.pieces;
}

bool reads(const Step& step, const Step& sum) {
  const Place &from = step.source, &at = sum.target;
  if (step.kind == StepKind::recv || from.space != at.space || from.slot != at.slot) return false;
  return at.space == Space::scratch ||
         (step.piece < sum.piece + sum.pieces && sum.piece < step.piece + step.pieces);
}

// Steps are listed in an order in which they can run.
bool continues(const Plan& plan, int before, int step) {
  const Step &sum = plan.steps[before], &more = plan.steps[step];
  if (sum.kind != StepKind::decode_reduce || more.kind != StepKind::decode_reduce || sum.final ||
      !same_target(sum, more))
    return false;
  const auto begin = plan.steps.begin();
  return std::none_of(begin + before + 1, begin + step, [&](const Step& other) { return reads(other, sum); });
}

}  // namespace

std::vector<InRow> rows_of(const Plan& plan) {
  std::vector<InRow> rows(plan.steps.size(), InRow::no);
  std::map<int, int> latest;  // step, by lane
  for (int i = 0; i < static_cast<int>(plan.steps.size()); ++i) {
    const auto [found, first] = latest.try_emplace(plan.steps[i].lane, i);
    const int before = std::exchange(found->second, i);
    if (first || !continues(plan, before, i)) continue;
    rows[before] = rows[before] == InRow::no ? InRow::first : InRow::middle;
    rows[i] = InRow::last;
  }
  return rows;
}

size_t wide_elements(const Plan& plan, const Layout& layout) {
  const std::vector<InRow> rows = rows_of(plan);
  size_t most = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] != InRow::no) most = std::max(most, layout.count(plan.steps[i].piece, plan.steps[i].pieces));
  return most;
}

}  // namespace gpucomm
