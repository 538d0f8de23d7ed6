// A collective as data: what one rank does, over numbered pieces of the message. Values only, no IO.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.h"

namespace gpucomm {

enum class Collective : uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all
};
inline constexpr int kCollectives = 8;
inline constexpr std::string_view kCollectiveNames[kCollectives] = {
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"};
inline constexpr std::string_view name_of(Collective c) { return kCollectiveNames[static_cast<int>(c)]; }
inline constexpr bool reduces(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce || c == Collective::reduce_scatter;
}
inline constexpr bool rooted(Collective c) {
  return c == Collective::reduce || c == Collective::broadcast || c == Collective::gather ||
         c == Collective::scatter;
}
// The input is only this rank's chunk of the message; or the output is.
inline constexpr bool gathers(Collective c) { return c == Collective::all_gather || c == Collective::gather; }
inline constexpr bool scatters(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::scatter;
}
// Chunk r of the message belongs to rank r: its size is the caller's, not a cut of ours. Of all_to_all chunk
// r of the input goes to rank r, and chunk r of the output comes from it.
inline constexpr bool by_rank(Collective c) {
  return gathers(c) || scatters(c) || c == Collective::all_to_all;
}

enum class StepKind : uint8_t { send, recv, recv_reduce, reduce, encode, decode, decode_reduce, copy };
inline constexpr std::string_view kStepNames[] = {"send",   "recv",   "recv_reduce",   "reduce",
                                                  "encode", "decode", "decode_reduce", "copy"};
inline constexpr std::string_view name_of(StepKind k) { return kStepNames[static_cast<int>(k)]; }
inline constexpr bool receives(StepKind k) { return k == StepKind::recv || k == StepKind::recv_reduce; }
// It moves something between ranks.
inline constexpr bool travels(StepKind k) { return k == StepKind::send || receives(k); }

// Where a run of pieces lies on this rank. input and output are the caller's arrays (one and the same in
// place); scratch and coded are numbered slots of the communicator's own memory.
enum class Space : uint8_t { input, output, scratch, coded };
inline constexpr std::string_view kSpaceNames[] = {"input", "output", "scratch", "coded"};
inline constexpr std::string_view name_of(Space s) { return kSpaceNames[static_cast<int>(s)]; }

struct Place {
  Space space = Space::output;
  int slot = 0;   // of scratch and coded
  int base = -1;  // the piece at the slot's start; -1: the step's own first piece
  bool operator==(const Place&) const = default;
};
inline bool coded(const Place& place) { return place.space == Space::coded; }

struct Step {
  StepKind kind = StepKind::copy;
  int piece = 0;   // the first piece
  int pieces = 1;  // of a run of consecutive pieces
  Place source;    // send, encode, decode, copy: what is read. Reducing steps: the own operand
  Place target;    // what is written (not by send). Its space tells the form: coded, or dense elements
  // send, recv: one; recv_reduce: k, ascending, the own operand folded in at its rank.
  std::vector<int> peers;
  int lane = 0;            // steps of one lane run in order, lanes at once
  int round = 0;           // of a message: equal at both ends
  std::vector<int> after;  // indices of steps that must be done before
  // Of a reducing step: the fold is complete here (a mean divides now); of an encode: so is what it reads.
  bool final = false;
};

struct Plan {
  Collective collective = Collective::all_reduce;
  std::string algorithm;
  int world = 1, rank = 0, root = 0;
  int chunks = 1;              // the message is cut into chunks ...
  int segments = 1;            // ... and those into segments; pieces = chunks * segments
  bool segment_major = false;  // piece = segment * chunks + chunk instead of chunk * segments + segment
  bool in_place = true;
  int scratch_slots = 0, coded_slots = 0;
  std::vector<Step> steps;

  int pieces() const { return chunks * segments; }
  int piece(int chunk, int segment) const {
    return segment_major ? segment * chunks + chunk : chunk * segments + segment;
  }
  int chunk_of(int piece) const { return segment_major ? piece % chunks : piece / segments; }
  int segment_of(int piece) const { return segment_major ? piece / chunks : piece % segments; }
  int add(Step step) {
    steps.push_back(std::move(step));
    return static_cast<int>(steps.size()) - 1;
  }
};

// What a builder is asked for. `root` is 0 where the collective has none.
struct PlanRequest {
  Collective collective = Collective::all_reduce;
  int world = 1, rank = 0, root = 0, segments = 1;
  bool in_place = true;
  std::vector<int> nodes;  // the node of each rank, numbered from 0 in order of first ranks; empty: one
  bool additive = false;   // of coded plans: the codec adds coded pieces
  // Of coded plans: pieces are read where they were encoded. Then nothing is on its way, and fewer segments
  // at a time need fewer slots.
  bool lends = false;
};

// The rank so many places further round the world; `by` is at least -world.
inline int around(int rank, int by, int world) { return (rank + by + world) % world; }

// An algorithm: one file that builds plans.
struct Algorithm {
  static constexpr const char* kKind = "algorithm";
  std::string summary;                  // one line, for tables
  std::string source;                   // the paper, or "ours"
  std::vector<Collective> collectives;  // what it offers
  bool segmented;                       // whether cutting finer than its chunks can pay
  void (*build)(const PlanRequest&, Plan&);
  bool across_nodes = false;  // only of use where there are several
  bool coded = false;    // sends pieces in coded form: only for calls with a codec, and those take no other
  bool repeats = false;  // a rank may encode a piece more than once: what is lost cannot be told by element
  bool named_only = false;  // never "auto": ranks may be left with other bits than each other
  int from_world = 1;       // "auto" considers it among so many ranks; below, it is as another one

  bool offers(Collective c) const;
};

// The names of the algorithms that offer a collective, without a codec or with one.
std::string offering(Collective collective, bool coded);

// Throws invalid_argument unless these are the nodes of so many ranks, in the order of their first ranks.
void check_nodes(const std::vector<int>& nodes, int world);

// Builds one rank's plan; throws invalid_argument for an unknown algorithm or one without the collective.
Plan build_plan(std::string_view algorithm, const PlanRequest& request);
// Every rank's plan of the same call.
std::vector<Plan> build_plans(std::string_view algorithm, PlanRequest request);

// Sizes of the pieces: offsets in elements, pieces + 1 of them.
struct Layout {
  std::vector<size_t> offset;
  size_t begin(int piece) const { return offset[piece]; }
  size_t count(int piece, int pieces = 1) const { return offset[piece + pieces] - offset[piece]; }
};

// Cuts `count` elements for the plan. Cuts fall on multiples of `align` elements, except that the chunks of
// collectives by rank are exactly count / world. `counts` (one per chunk) overrides the chunks.
Layout cut(const Plan& plan, size_t count, size_t align, const std::vector<size_t>& counts = {});

// Elements that a slot of `space` (scratch or coded) must hold for any step of the plan.
size_t slot_elements(const Plan& plan, const Layout& layout, Space space);

}  // namespace gpucomm
