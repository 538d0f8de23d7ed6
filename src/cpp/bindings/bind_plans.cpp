// Plans, the verifier and the cost model, for tests, pictures and the command line.
#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "bindings/bind.h"
#include "bindings/interpreter.h"
#include "bindings/names.h"
#include "plans/cost.h"
#include "plans/rounds.h"
#include "plans/verify.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

static PlanRequest request(const std::string& collective, int world, int rank, int root, int segments,
                           bool in_place, std::vector<int> nodes, bool additive) {
  const auto parsed = parse<Collective>("collective", collective, kCollectiveNames);
  return {parsed, world, rank, root, segments, in_place, std::move(nodes), additive};
}

static void require_within(const char* what, int64_t value, int64_t least, int64_t end) {
  if (value < least || value >= end)
    fail(ErrorKind::invalid_argument, what, " must be in [", least, ", ", end, "), got ", value);
}

// What all that reads plans takes for granted; the rest is the verifier's.
static void check(const Plan& plan) {
  constexpr int kMost = 1 << 20;
  require_within("world", plan.world, 1, kMost);
  require_within("rank", plan.rank, 0, plan.world);
  require_within("root", plan.root, 0, plan.world);
  require_within("chunks", plan.chunks, 1, kMost);
  require_within("segments", plan.segments, 1, kMost);
  const int64_t pieces = int64_t{plan.chunks} * plan.segments;
  require_within("chunks times segments", pieces, 1, kMost);
  for (const Step& step : plan.steps) {
    require_within("a step's lane", step.lane, 0, kMost);
    require_within("a step's first piece", step.piece, 0, pieces);
    require_within("a step's number of pieces", step.pieces, 1, pieces - step.piece + 1);
    if (step.kind == StepKind::send || step.kind == StepKind::recv)
      require_within("the number of a message's peers", static_cast<int64_t>(step.peers.size()), 1, 2);
    for (int before : step.after)
      require_within("a step that is done before", before, 0, static_cast<int64_t>(plan.steps.size()));
  }
}

static void bind_values(py::module_& m) {
  py::class_<Place>(m, "Place", "Where a run of pieces lies on a rank.")
      .def(py::init([](const std::string& space, int slot, int base) {
             return Place{parse<Space>("space", space, kSpaceNames), slot, base};
           }),
           "space"_a = "output", "slot"_a = 0, "base"_a = -1)
      .def_property_readonly("space", [](const Place& p) { return name_of(p.space); })
      .def_readonly("slot", &Place::slot)
      .def_readonly("base", &Place::base);
  py::class_<Step>(m, "Step", "One step of a plan.")
      .def(py::init([](const std::string& kind, int piece, int pieces, Place source, Place target,
                       std::vector<int> peers, int lane, int round, std::vector<int> after, bool final) {
             return Step{parse<StepKind>("step", kind, kStepNames),
                         piece,
                         pieces,
                         source,
                         target,
                         std::move(peers),
                         lane,
                         round,
                         std::move(after),
                         final};
           }),
           "kind"_a, "piece"_a = 0, "pieces"_a = 1, py::arg_v("source", Place{}, "..."),
           py::arg_v("target", Place{}, "..."), "peers"_a = std::vector<int>{}, "lane"_a = 0, "round"_a = 0,
           "after"_a = std::vector<int>{}, "final"_a = false)
      .def_property_readonly("kind", [](const Step& s) { return name_of(s.kind); })
      .def_readonly("piece", &Step::piece)
      .def_readonly("pieces", &Step::pieces)
      .def_readonly("source", &Step::source)
      .def_readonly("target", &Step::target)
      .def_readonly("peers", &Step::peers)
      .def_readonly("lane", &Step::lane)
      .def_readonly("round", &Step::round)
      .def_readonly("after", &Step::after)
      .def_readonly("final", &Step::final);
  py::class_<Plan>(m, "Plan",
                   "A collective as data: what one rank does, over numbered pieces of the message.")
      .def(py::init([](const std::string& collective, const std::string& algorithm, int world, int rank,
                       int root, int chunks, int segments, bool in_place, int scratch_slots, int coded_slots,
                       std::vector<Step> steps) {
             Plan plan{parse<Collective>("collective", collective, kCollectiveNames),
                       algorithm,
                       world,
                       rank,
                       root,
                       chunks,
                       segments,
                       false,
                       in_place,
                       scratch_slots,
                       coded_slots,
                       std::move(steps)};
             check(plan);
             return plan;
           }),
           "collective"_a, "algorithm"_a, "world"_a, "rank"_a, "root"_a = 0, "chunks"_a = 1, "segments"_a = 1,
           "in_place"_a = true, "scratch_slots"_a = 0, "coded_slots"_a = 0, "steps"_a = std::vector<Step>{})
      .def_property_readonly(
          "collective", [](const Plan& p) { return name_of(p.collective); }, "The collective's name.")
      .def_readonly("algorithm", &Plan::algorithm, "The builder's registered name.")
      .def_readonly("world", &Plan::world, "How many ranks.")
      .def_readonly("rank", &Plan::rank, "Whose plan this is.")
      .def_readonly("root", &Plan::root, "The root; 0 where the collective has none.")
      .def_readonly("chunks", &Plan::chunks, "Into how many chunks the message is cut.")
      .def_readonly("segments", &Plan::segments, "Into how many segments each chunk is cut.")
      .def_readonly("in_place", &Plan::in_place, "Whether input and output are one array.")
      .def_readonly("scratch_slots", &Plan::scratch_slots,
                    "Slots of the communicator's own memory that it needs.")
      .def_readonly("steps", &Plan::steps, "The steps, of all lanes.")
      .def_property_readonly("pieces", &Plan::pieces, "Pieces of the message: chunks times segments.")
      .def(
          "layout",
          [](const Plan& p, size_t count, size_t align, const std::vector<size_t>& counts) {
            if (align == 0) fail(ErrorKind::invalid_argument, "align must be at least 1, got 0");
            const size_t sum = std::accumulate(counts.begin(), counts.end(), size_t{0});
            if (!counts.empty() && (counts.size() != static_cast<size_t>(p.chunks) || sum != count))
              fail(ErrorKind::invalid_argument, "counts must be of ", p.chunks, " chunks, ", count,
                   " elements together, got ", counts.size(), " of ", sum);
            return cut(p, count, align, counts).offset;
          },
          "count"_a, "align"_a = 1, "counts"_a = std::vector<size_t>{},
          "Offsets of the pieces in elements (pieces + 1 of them) for a message of `count` elements.");
}

static void bind_verify(py::module_& m) {
  py::class_<Verified>(m, "Verified", "What the verifier found of a valid set of plans.")
      .def_readonly("messages", &Verified::messages)
      .def_readonly("rounds", &Verified::rounds)
      .def_readonly("lossy_passes", &Verified::lossy_passes)
      .def_readonly("encode_errors", &Verified::encode_errors)
      .def_readonly("repeats", &Verified::repeats)
      .def_readonly("scratch_slots", &Verified::scratch_slots)
      .def_readonly("sent", &Verified::sent);
  m.def("verify", &verify, "plans"_a,
        "Executes the plans of all ranks symbolically; raises MismatchError on any fault.");
  m.def(
      "place_steps",
      [](const std::vector<Plan>& plans, const std::vector<Plan>& agreed) {
        const std::vector<MessageRounds> rounds = find_rounds(agreed.empty() ? plans : agreed);
        std::vector<std::vector<int>> placed;
        for (const Plan& plan : plans) placed.push_back(place_steps(plan, rounds.at(plan.rank)));
        return placed;
      },
      "plans"_a, "agreed"_a = std::vector<Plan>{},
      "The round in which each rank's send or recv travels, and after which any other step runs (-1: before "
      "all), where\nmessages are grouped; `agreed`: the plans whose rounds hold, in place.");
}

constexpr std::string_view kLinkKinds[] = {"switch", "chain", "nodes"};

static Links make_links(const std::string& kind, double alpha, double beta, double lambda, double gamma,
                        std::vector<int> nodes, double inner_alpha, double inner_beta, double inner_lambda,
                        std::vector<double> betas) {
  std::vector<double> times{alpha, beta, lambda, gamma, inner_alpha, inner_beta, inner_lambda};
  times.insert(times.end(), betas.begin(), betas.end());
  for (double v : times)
    if (!(v >= 0))
      fail(ErrorKind::invalid_argument, "alpha, beta, lambda_ and gamma must not be negative, got ", v);
  const auto parsed = parse<Links::Kind>("link model", kind, kLinkKinds);
  if ((parsed == Links::Kind::nodes) == nodes.empty())
    fail(ErrorKind::invalid_argument, "nodes must be given for links of kind 'nodes', and for no others");
  check_nodes(nodes, static_cast<int>(nodes.size()));
  return {parsed,           alpha,       lambda,       beta,       gamma,
          std::move(nodes), inner_alpha, inner_lambda, inner_beta, std::move(betas)};
}

static std::string text_of(const Links& l) {
  std::ostringstream out;
  out << "Links(kind='" << kLinkKinds[static_cast<int>(l.kind)] << "', alpha=" << l.alpha
      << ", beta=" << l.beta << ", lambda_=" << l.lambda << ", gamma=" << l.gamma;
  if (!l.nodes.empty())
    out << ", nodes=" << std::string(py::repr(py::cast(l.nodes))) << ", inner_alpha=" << l.inner_alpha
        << ", inner_beta=" << l.inner_beta << ", inner_lambda=" << l.inner_lambda;
  if (!l.betas.empty()) out << ", betas=" << std::string(py::repr(py::cast(l.betas)));
  return out.str() + ")";
}

static void bind_cost(py::module_& m) {
  py::class_<Links>(
      m, "Links",
      "A model of the links: seconds a message (alpha), of latency (lambda_), a byte (beta), a byte reduced "
      "(gamma); of kind nodes also\nthe node of each rank and the figures inside one. betas: instead of beta "
      "that of each rank's ports,\nof each link of a chain, of each node's ports.")
      .def(py::init(&make_links), "kind"_a = "switch", "alpha"_a = 5e-6, "beta"_a = 1e-9, "lambda_"_a = 0.0,
           "gamma"_a = 0.0, "nodes"_a = std::vector<int>{}, "inner_alpha"_a = 0.0, "inner_beta"_a = 0.0,
           "inner_lambda"_a = 0.0, "betas"_a = std::vector<double>{})
      .def_property_readonly("kind",
                             [](const Links& l) { return std::string(kLinkKinds[static_cast<int>(l.kind)]); })
      .def_readonly("nodes", &Links::nodes)
      .def_readonly("betas", &Links::betas)
      .def_readonly("inner_alpha", &Links::inner_alpha)
      .def_readonly("inner_beta", &Links::inner_beta)
      .def_readonly("inner_lambda", &Links::inner_lambda)
      .def_readonly("alpha", &Links::alpha)
      .def_readonly("beta", &Links::beta)
      .def_readonly("lambda_", &Links::lambda)
      .def_readonly("gamma", &Links::gamma)
      .def("__repr__", &text_of);
  py::class_<Timed>(m, "Event", "One step of a schedule; peer is -1 for a local step.")
      .def_readonly("rank", &Timed::rank)
      .def_readonly("step", &Timed::step)
      .def_readonly("peer", &Timed::peer)
      .def_readonly("start_s", &Timed::start_s)
      .def_readonly("end_s", &Timed::end_s);
  py::class_<Schedule>(m, "Schedule", "When each step runs on a model of the links.")
      .def_readonly("total_s", &Schedule::total_s)
      .def_readonly("events", &Schedule::events);
  m.def(
      "schedule",
      [](const std::vector<Plan>& plans, const std::vector<size_t>& offsets, const Links& links, double coded,
         double encode, double decode) {
        for (const Plan& plan : plans)
          if (offsets.size() != static_cast<size_t>(plan.pieces()) + 1)
            fail(ErrorKind::invalid_argument, "offset_bytes must have pieces + 1 = ", plan.pieces() + 1,
                 " entries, got ", offsets.size());
        return schedule(plans, offsets, links, {coded, encode, decode});
      },
      "plans"_a, "offset_bytes"_a, "links"_a, "coded"_a = 1.0, "encode"_a = 0.0, "decode"_a = 0.0,
      "List-schedules the plans of all ranks on a link model; coded, encode and decode as of total_time.");
  m.def(
      "total_time",
      [](const std::string& collective, const std::string& algorithm, int world, size_t nbytes,
         const Links& links, int root, int segments, double coded, double encode, double decode,
         bool additive) {
        const auto asked = request(collective, world, 0, root, segments, true, links.nodes, additive);
        build_plan(algorithm, asked);  // says what is wrong, also with world = 0
        const Released release;
        return total_time(algorithm, asked, nbytes, links, {coded, encode, decode});
      },
      "collective"_a, "algorithm"_a, "world"_a, "nbytes"_a, "links"_a, "root"_a = 0, "segments"_a = 1,
      "coded"_a = 1.0, "encode"_a = 0.0, "decode"_a = 0.0, "additive"_a = false,
      "The total time of a call, in place, on a link model; for thousands of ranks too. Of coded plans: "
      "`coded` bytes\nfor a byte, seconds to `encode` and to `decode` a byte, and whether the codec is "
      "`additive`.");
}

void bind_plans(py::module_& m) {
  bind_values(m);
  bind_verify(m);
  bind_cost(m);
  m.def(
      "algorithms",
      [] {
        py::dict table;
        for (const auto& [name, a] : Registry<Algorithm>::all()) {
          py::list collectives;
          for (Collective c : a.collectives) collectives.append(name_of(c));
          table[py::str(name)] =
              py::dict("summary"_a = a.summary, "source"_a = a.source, "collectives"_a = collectives,
                       "segmented"_a = a.segmented, "across_nodes"_a = a.across_nodes, "coded"_a = a.coded,
                       "repeats"_a = a.repeats, "named_only"_a = a.named_only, "from_world"_a = a.from_world);
        }
        return table;
      },
      R"(The registered algorithms, by name.

Returns:
    Of each its summary, its source and the collectives that it offers; whether it cuts messages into segments
    (segmented), is for ranks of several nodes (across_nodes), runs with a codec and only so (coded), may encode a
    piece more than once (repeats), is never taken by "auto", as ranks may get other bits than each other
    (named_only); and among how many ranks "auto" considers it at least (from_world).)");
  m.def(
      "build_plan",
      [](const std::string& collective, const std::string& algorithm, int world, int rank, int root,
         int segments, bool in_place, const std::vector<int>& nodes, bool additive) {
        return build_plan(algorithm,
                          request(collective, world, rank, root, segments, in_place, nodes, additive));
      },
      "collective"_a, "algorithm"_a, "world"_a, "rank"_a, "root"_a = 0, "segments"_a = 1, "in_place"_a = true,
      "nodes"_a = std::vector<int>{}, "additive"_a = false,
      "One rank's plan; `nodes`: the node of each rank, numbered from 0; `additive`: of coded plans, the "
      "codec adds coded pieces.");
  m.def(
      "build_plans",
      [](const std::string& collective, const std::string& algorithm, int world, int root, int segments,
         bool in_place, const std::vector<int>& nodes, bool additive) {
        return build_plans(algorithm,
                           request(collective, world, 0, root, segments, in_place, nodes, additive));
      },
      "collective"_a, "algorithm"_a, "world"_a, "root"_a = 0, "segments"_a = 1, "in_place"_a = true,
      "nodes"_a = std::vector<int>{}, "additive"_a = false, "Every rank's plan of the same call.");
}

}  // namespace gpucomm
