// algorithm="auto" and the number of segments: what the model of the links says of the candidates.
#pragma once
#include <compare>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/call.h"
#include "plans/cost.h"

namespace gpucomm {

struct Choice {
  std::string algorithm;
  int segments = 1;
  double cost_s = 0;                  // predicted
  PrivateWay way = PrivateWay::rule;  // of which the model knows nothing
};
bool codes(const Choice& choice);
// The least that was predicted without the codec and with it.
struct LeastCosts {
  double dense = std::numeric_limits<double>::infinity(), coded = dense;
  void add(const std::vector<Choice>& choices);
};
// Whether bytes move at the memory's speed: the model, which knows neither caches nor placement, is off by
// more.
bool in_memory(const Links& links);
// How many times faster a call must be with the codec, if any, than without: what loses bits must gain more.
double coded_counts(const Codec* codec, const Links& links);
// Bytes: messages are not cut finer. On links a segment takes at least as long as what sending it costs a
// rank.
size_t least_segment(const Links& links);
// Whether they have the same plan.
bool same_plan(const Choice& a, const Choice& b);

// Calls that are chosen for alike, the same on every rank: collective, size in powers of two (of all_to_all
// with uneven counts, which the ranks do not know of each other, none), algorithm, segments, root and codec
// as asked, and whether what it loses is told.
struct Kind {
  int collective, width;  // 1 + std::bit_width(bytes - 1); 0: no bytes that all know
  std::string algorithm;
  int segments, root;
  std::string codec;
  bool tells_error;
  auto operator<=>(const Kind&) const = default;
};
Kind kind_of(const Shape& shape);
// The bytes of a message, as far as all ranks know them.
size_t bytes_known(const Shape& shape);
// The largest message of a kind, in bytes.
size_t most_bytes(const Kind& kind);

// What the model alone computes with where nothing may be measured: typical figures.
Links typical_links(const std::vector<int>& nodes);

// As messages find them that devices get and give in memory of the host, whose links these are.
Links links_of_staged(Links links);
// Of NCCL, between GPUs of these nodes: typical figures.
Links links_of_nccl(const std::vector<int>& nodes);

// Remembers the candidates of each kind of call; the same on every rank that has the same links, for they are
// computed from nothing else.
class Choices {
 public:
  // `shape.algorithm` "auto": any that offers the collective, with a codec those without it too: coding must
  // pay, in memory by the model already, which tries the others in vain else. `shape.segments` 0: powers of
  // two. `nodes`: the node of each rank. The choice comes first, then by cost what is worth trying, some of
  // them without the codec. `coding`: what the shape's codec costs.
  const std::vector<Choice>& find(const Shape& shape, const std::vector<int>& nodes, const Links& links,
                                  const Coding& coding = {});
  void clear() { known_.clear(); }

 private:
  std::map<Kind, std::vector<Choice>> known_;
};

}  // namespace gpucomm
