// Building and cutting: what every algorithm shares.
#include "plans/plan.h"

#include <algorithm>

#include "base/aligned.h"

namespace gpucomm {

bool Algorithm::offers(Collective c) const {
  return std::find(collectives.begin(), collectives.end(), c) != collectives.end();
}

void check_nodes(const std::vector<int>& nodes, int world) {
  if (nodes.empty()) return;
  if (nodes.size() != static_cast<size_t>(world))
    fail(ErrorKind::invalid_argument, "nodes must have an entry for each of ", world, " ranks, got ",
         nodes.size());
  int known = 0;
  for (int node : nodes) {
    if (node < 0 || node > known)
      fail(ErrorKind::invalid_argument,
           "nodes must be numbered from 0 in the order of their first ranks, got ", node, " where at most ",
           known, " can be");
    known += node == known;
  }
}

static void check_request(const PlanRequest& request) {
  if (request.world < 1) fail(ErrorKind::invalid_argument, "world must be at least 1, got ", request.world);
  if (request.rank < 0 || request.rank >= request.world)
    fail(ErrorKind::invalid_argument, "rank must be in [0, ", request.world, "), got ", request.rank);
  if (request.root < 0 || request.root >= request.world)
    fail(ErrorKind::invalid_argument, "root must be in [0, ", request.world, "), got ", request.root);
  if (request.segments < 1)
    fail(ErrorKind::invalid_argument, "segments must be at least 1, got ", request.segments);
  check_nodes(request.nodes, request.world);
}

std::string offering(Collective collective, bool coded) {
  std::string names;
  for (const auto& [name, entry] : Registry<Algorithm>::all())
    if (entry.coded == coded && entry.offers(collective)) names += (names.empty() ? "" : ", ") + name;
  return names;
}

// A world of one: the result is the input.
static void build_alone(const PlanRequest& request, Plan& plan) {
  if (request.in_place) return;
  plan.add({.kind = StepKind::copy, .source = {Space::input}, .target = {Space::output}});
}

Plan build_plan(std::string_view algorithm, const PlanRequest& request) {
  const Algorithm& entry = Registry<Algorithm>::find(algorithm);
  check_request(request);
  if (!entry.offers(request.collective)) {
    const std::string alike = offering(request.collective, entry.coded);
    const std::string others =
        alike.empty() ? ", nor does another that codes; without do: " + offering(request.collective, false)
                      : "; those that do: " + alike;
    fail(ErrorKind::invalid_argument, "algorithm '", algorithm, "' does not offer ",
         name_of(request.collective), others);
  }
  Plan plan;
  plan.collective = request.collective;
  plan.algorithm = algorithm;
  plan.world = request.world, plan.rank = request.rank, plan.root = request.root;
  plan.in_place = request.in_place;
  if (request.world == 1) {
    build_alone(request, plan);
  } else {
    plan.segments = entry.segmented ? request.segments : 1;
    entry.build(request, plan);
  }
  return plan;
}

std::vector<Plan> build_plans(std::string_view algorithm, PlanRequest request) {
  std::vector<Plan> plans;
  for (request.rank = 0; request.rank < request.world; ++request.rank)
    plans.push_back(build_plan(algorithm, request));
  return plans;
}

// Cuts [begin, end) into `parts`, each a multiple of `align` but the last; appends the ends of all parts.
static void cut_evenly(size_t begin, size_t end, int parts, size_t align, std::vector<size_t>& ends) {
  const size_t share = round_up((end - begin + parts - 1) / parts, align);
  for (int i = 1; i <= parts; ++i) ends.push_back(i == parts ? end : std::min(end, begin + share * i));
}

static std::vector<size_t> cut_by_rank(size_t count, int chunks, const std::vector<size_t>& counts) {
  std::vector<size_t> ends = {0};
  for (int chunk = 0; chunk < chunks; ++chunk)
    ends.push_back(ends.back() + (counts.empty() ? count / chunks : counts[chunk]));
  GPUCOMM_CHECK(ends.back() == count);
  return ends;
}

Layout cut(const Plan& plan, size_t count, size_t align, const std::vector<size_t>& counts) {
  GPUCOMM_CHECK(counts.empty() || counts.size() == static_cast<size_t>(plan.chunks));
  std::vector<size_t> outer = {0};
  const bool exact = !counts.empty() || (by_rank(plan.collective) && plan.world > 1);
  if (exact)
    outer = cut_by_rank(count, plan.chunks, counts);
  else
    cut_evenly(0, count, plan.segment_major ? plan.segments : plan.chunks, align, outer);
  GPUCOMM_CHECK(!(exact && plan.segment_major && plan.segments > 1));
  const int inner = plan.pieces() / static_cast<int>(outer.size() - 1);
  Layout layout;
  layout.offset.reserve(plan.pieces() + 1);
  layout.offset.push_back(0);
  for (size_t i = 0; i + 1 < outer.size(); ++i)
    cut_evenly(outer[i], outer[i + 1], inner, align, layout.offset);
  return layout;
}

size_t slot_elements(const Plan& plan, const Layout& layout, Space space) {
  size_t largest = 0;
  for (const Step& step : plan.steps)
    for (const Place& place : {step.source, step.target}) {
      if (place.space != space) continue;
      const int base = place.base < 0 ? step.piece : place.base;
      largest = std::max(largest, layout.offset[step.piece + step.pieces] - layout.begin(base));
    }
  return largest;
}

}  // namespace gpucomm
