#include "engine/choose.h"

#include <algorithm>
#include <bit>

namespace gpucomm {
namespace {

constexpr size_t kLeastSegmentBytes = 64 << 10;  // arXiv:1611.04255's block; below it overhead wins
constexpr int kMostSegments = 256;
// Of all ranks: finer plans are not looked at, so that choosing takes no minutes.
constexpr size_t kMostSteps = 1 << 17;
// The model does not know caches: of choices this close the finer one, until its segments stay in a core's.
constexpr double kTie = 1.02;
constexpr size_t kCachedBytes = 256 << 10;

}  // namespace

const Choice& Choices::find(const Shape& shape, const std::vector<int>& nodes, const Links& links) {
  // Uneven counts are priced as even ones. Of all_to_all the ranks know different counts, and must choose
  // alike: as for an empty message.
  const size_t bytes = shape.out_counts.empty() ? shape.count * size_of(shape.dtype) : 0;
  const int size = std::bit_width(bytes);
  const auto key =
      std::tuple(static_cast<int>(shape.collective), size, shape.algorithm, shape.segments, shape.root);
  if (auto found = known_.find(key); found != known_.end()) return found->second;
  const size_t upper = bytes ? (size_t{1} << size) - 1 : 0;
  const int world = static_cast<int>(nodes.size());
  const bool several = std::any_of(nodes.begin(), nodes.end(), [](int node) { return node > 0; });
  Choice best{.cost_s = -1};
  for (const auto& [name, entry] : Registry<Algorithm>::all()) {
    if (shape.algorithm == "auto" ? !entry.offers(shape.collective) : name != shape.algorithm) continue;
    if (shape.algorithm == "auto" && entry.across_nodes && !several) continue;
    const int first = shape.segments ? shape.segments : 1;
    for (int m = first; m == first || (!shape.segments && entry.segmented && m <= kMostSegments &&
                                       upper / m >= kLeastSegmentBytes);
         m *= 2) {
      const PlanRequest request{shape.collective, world, 0, shape.root, m, true, nodes};
      if (m > first && build_plan(name, request).steps.size() * world > kMostSteps) break;
      const double c = total_time(name, request, upper, links);
      const bool finer = m > best.segments && upper / best.segments > kCachedBytes && c <= best.cost_s * kTie;
      if (best.cost_s < 0 || finer || c < best.cost_s) best = {name, m, finer ? std::min(c, best.cost_s) : c};
    }
  }
  return known_[key] = best;
}

}  // namespace gpucomm
