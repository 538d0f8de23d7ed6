#include "engine/choose.h"

#include <algorithm>
#include <bit>

#include "engine/device_folds.h"

namespace gpucomm {
namespace {

// In memory below arXiv:1611.04255's block overhead wins.
constexpr size_t kLeastInMemory = 64 << 10, kLeastOnLinks = 1 << 10;
constexpr int kMostSegments = 256;
// Of all ranks: finer plans are not looked at, so that choosing takes no minutes.
constexpr size_t kMostSteps = 1 << 17;
// Of an algorithm's cuts this close in memory the finer one, until its segments stay in a core's cache, and
// on links the coarser one: the model knows neither caches nor what else the cores have to do.
constexpr double kTieInMemory = 1.02, kTie = 1.01;
constexpr size_t kCachedBytes = 256 << 10;
// What is worth trying beside the model's choice: candidates predicted at most so many times dearer, cut so
// many times four times finer or coarser than their best, and how many in all. Costs of neighbours differ by
// less than can be measured.
struct Doubt {
  double dearer;
  size_t cuts, most;
};
constexpr Doubt kDoubt{1.5, 1, 8}, kDoubtInMemory{4, 8, 16};
constexpr double kMemorySecondsAByte = 1e-9;
// Beside a codec so many choices without one are tried in any case, predicted at most so many times dearer.
constexpr int kDense = 3;
constexpr double kDearestDense = 4;

// How many times faster what loses bits must be, on links and in memory, where times differ by more from one
// burst to another.
constexpr double kLossGains = 1.05, kLossGainsInMemory = 1.25;

bool several(const std::vector<int>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](int node) { return node > 0; });
}

// Whether a device folds as many arrays at once as it does.
bool runs_on_device(const std::string& name, const Shape& shape, const std::vector<int>& nodes) {
  const int world = static_cast<int>(nodes.size());
  if (world <= kMaxSources) return true;
  return device_folds(build_plans(name, {shape.collective, world, 0, shape.root, 1, true, nodes}));
}

// Whether "auto" considers it.
bool considered(const std::string& name, const Algorithm& entry, const Shape& shape,
                const std::vector<int>& nodes) {
  return !entry.named_only && (!entry.across_nodes || several(nodes)) &&
         static_cast<int>(nodes.size()) >= entry.from_world &&
         (!shape.on_device || runs_on_device(name, shape, nodes));
}

// An algorithm's numbers of segments.
std::vector<Choice> cuts(const std::string& name, const Algorithm& entry, const Shape& shape, size_t bytes,
                         const std::vector<int>& nodes, const Links& links, const Coding& coding) {
  const int world = static_cast<int>(nodes.size()), first = shape.segments ? shape.segments : 1;
  const size_t least = least_segment(links);
  std::vector<Choice> cuts;
  for (int m = first;
       m == first || (!shape.segments && entry.segmented && m <= kMostSegments && bytes / m >= least);
       m *= 2) {
    PlanRequest request{shape.collective, world, 0, shape.root, m, true, nodes};
    request.additive = adds_coded(shape);
    if (m > first && build_plan(name, request).steps.size() * world > kMostSteps) break;
    cuts.push_back({name, m, total_time(name, request, bytes, links, coding)});
  }
  return cuts;
}

size_t best_of(const std::vector<Choice>& all, size_t bytes, bool in_memory) {
  const double tie = in_memory ? kTieInMemory : kTie;
  auto cheaper = [](const Choice& a, const Choice& b) { return a.cost_s < b.cost_s; };
  const auto least = std::min_element(all.begin(), all.end(), cheaper);
  size_t best = least - all.begin();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].algorithm != least->algorithm || all[i].cost_s > least->cost_s * tie) continue;
    if (in_memory ? all[i].segments > all[best].segments && bytes / all[best].segments > kCachedBytes
                  : all[i].segments < all[best].segments)
      best = i;
  }
  return best;
}

std::vector<Choice> worth_trying(const std::vector<std::vector<Choice>>& algorithms, size_t bytes,
                                 const Links& links) {
  std::vector<Choice> all, near;
  for (const auto& cuts : algorithms) all.insert(all.end(), cuts.begin(), cuts.end());
  const bool memory = in_memory(links);
  const Choice best = all[best_of(all, bytes, memory)];
  const Doubt& doubt = memory ? kDoubtInMemory : kDoubt;
  for (const auto& cuts : algorithms) {
    const size_t own = cuts[0].algorithm == best.algorithm
                           ? std::bit_width(static_cast<unsigned>(best.segments / cuts[0].segments)) - 1
                           : best_of(cuts, bytes, memory);
    // In memory also uncut: what is read where it lies is not pipelined.
    for (size_t i = 0; i < cuts.size(); ++i)
      if ((i % 2 == own % 2 && i + 2 * doubt.cuts >= own && i <= own + 2 * doubt.cuts) || (memory && !i))
        near.push_back(cuts[i]);
  }
  std::erase_if(near, [&](const Choice& c) { return same_plan(c, best); });
  std::stable_sort(near.begin(), near.end(), [](auto& a, auto& b) { return a.cost_s < b.cost_s; });
  std::vector<Choice> tried{best};
  int dense = 0;
  for (const Choice& c : near) {
    const bool likely = c.cost_s <= doubt.dearer * best.cost_s && tried.size() < doubt.most;
    const bool beside = codes(best) && !codes(c) && dense < kDense && c.cost_s <= kDearestDense * best.cost_s;
    dense += !codes(c);
    if (likely || beside) tried.push_back(c);
  }
  return tried;
}

void drop_coded_that_gains_too_little(std::vector<std::vector<Choice>>& algorithms, double counts) {
  LeastCosts least;
  for (const auto& cuts : algorithms) least.add(cuts);
  if (least.dense <= counts * least.coded)
    std::erase_if(algorithms, [](const auto& cuts) { return codes(cuts[0]); });
}

}  // namespace

bool in_memory(const Links& links) { return links.beta < kMemorySecondsAByte; }

double coded_counts(const Codec* codec, const Links& links) {
  if (!codec || !codec->traits().lossy) return 1;
  return in_memory(links) ? kLossGainsInMemory : kLossGains;
}

size_t least_segment(const Links& links) {
  if (in_memory(links)) return kLeastInMemory;
  return std::clamp(static_cast<size_t>(links.alpha / links.beta), kLeastOnLinks, kLeastInMemory);
}

bool codes(const Choice& choice) { return Registry<Algorithm>::find(choice.algorithm).coded; }

void LeastCosts::add(const std::vector<Choice>& choices) {
  for (const Choice& choice : choices) {
    double& least = codes(choice) ? coded : dense;
    least = std::min(least, choice.cost_s);
  }
}

bool same_plan(const Choice& a, const Choice& b) {
  return a.algorithm == b.algorithm && a.segments == b.segments;
}

size_t bytes_known(const Shape& shape) {
  return shape.out_counts.empty() ? shape.count * size_of(shape.dtype) : 0;
}

Kind kind_of(const Shape& shape) {
  // Uneven counts are priced as even ones. A power of two, which most sizes are, is the largest of its kind:
  // what is predicted for that one holds for it exactly.
  const size_t bytes = bytes_known(shape);
  return {static_cast<int>(shape.collective),
          bytes ? 1 + static_cast<int>(std::bit_width(bytes - 1)) : 0,
          shape.algorithm,
          shape.segments,
          shape.root,
          shape.codec ? shape.codec->kind() : "",
          shape.tells_error};
}

size_t most_bytes(const Kind& kind) { return kind.width ? size_t{1} << (kind.width - 1) : 0; }

Links typical_links(const std::vector<int>& nodes) {
  Links memory{.alpha = 3e-7, .lambda = 3e-7, .beta = 1.5e-10, .gamma = 1e-10};
  if (!several(nodes)) return memory;
  Links links{
      .kind = Links::Kind::nodes, .alpha = 2e-5, .lambda = 2e-5, .beta = 8e-10, .gamma = memory.gamma};
  links.nodes = nodes;
  links.inner_alpha = memory.alpha, links.inner_lambda = memory.lambda, links.inner_beta = memory.beta;
  return links;
}

Links links_of_staged(Links links) {
  // Typical figures: what the host does for a copy and its event; until both have come; PCI Express.
  constexpr double kEnqueued = 1e-5, kCopied = 5e-5, kByte = 4e-11;
  links.alpha += kEnqueued, links.inner_alpha += kEnqueued;
  links.lambda += kCopied, links.inner_lambda += kCopied;
  links.beta = std::max(links.beta, kByte), links.inner_beta = std::max(links.inner_beta, kByte);
  for (double& beta : links.betas) beta = std::max(beta, kByte);
  return links;
}

// A port of 100 Gbit/s for each node, 100 GB/s between its GPUs, and what a group of messages takes.
Links links_of_nccl(const std::vector<int>& nodes) {
  Links links{.alpha = 1e-5, .lambda = 5e-6, .beta = 1e-11, .gamma = 1e-12};
  if (!several(nodes)) return links;
  links.kind = Links::Kind::nodes, links.nodes = nodes;
  links.inner_alpha = links.alpha, links.inner_lambda = links.lambda, links.inner_beta = links.beta;
  links.lambda = 1.5e-5, links.beta = 8e-11;
  return links;
}

const std::vector<Choice>& Choices::find(const Shape& shape, const std::vector<int>& nodes,
                                         const Links& links, const Coding& coding) {
  const Kind kind = kind_of(shape);
  if (auto found = known_.find(kind); found != known_.end()) return found->second;
  const size_t bytes = most_bytes(kind);
  std::vector<std::vector<Choice>> algorithms;
  for (const auto& [name, entry] : Registry<Algorithm>::all()) {
    if (shape.algorithm == "auto" ? !entry.offers(shape.collective) : name != shape.algorithm) continue;
    if (shape.algorithm == "auto" && !considered(name, entry, shape, nodes)) continue;
    if (entry.repeats && shape.tells_error) continue;
    if (entry.coded ? !shape.codec : shape.codec && shape.algorithm != "auto") continue;
    algorithms.push_back(cuts(name, entry, shape, bytes, nodes, links, coding));
  }
  if (shape.algorithm == "auto" && in_memory(links))
    drop_coded_that_gains_too_little(algorithms, coded_counts(shape.codec.get(), links));
  return known_[kind] = worth_trying(algorithms, bytes, links);
}

}  // namespace gpucomm
