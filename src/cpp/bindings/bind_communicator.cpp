// The signatures and docstrings of the communicator.
#include "bindings/bind_communicator.h"

#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/coalesced.h"
#include "bindings/docstrings.h"
#include "bindings/names.h"
#include "bindings/texts.h"
#include "bindings/whole.h"
#include "transports/regions.h"
#include "transports/wire.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

static void set_links(PyCommunicator& c, const py::object& given) try {
  if (!py::isinstance<Links>(given))
    fail(ErrorKind::invalid_argument, "links must be a model, as gpucomm.links.parse_model makes one, got ",
         shown(given));
  const auto& links = given.cast<const Links&>();
  places(links, c.core().world());  // they are of so many ranks
  c.core().set_links(links);
} catch (const Error& error) {
  throw Error(error.kind, error.what() + c.where());
}

void bind_regions(py::module_& m) {
  py::class_<Region, std::shared_ptr<Region>>(m, "Region",
                                              "The memory that ranks which are threads of one process share.")
      .def(py::init(&make_local_region), "world"_a, "heap_bytes"_a = py::none());
  m.def(
      "shm_create", &make_shm_fd, "world"_a, "heap_bytes"_a = py::none(),
      "A memfd for the communicator of `world` processes, each with a heap of so many bytes (None: its share "
      "of the\nmachine's memory); the caller closes it.");
  m.def(
      "transports",
      [] {
        py::dict table;
        for (const auto& [name, t] : Registry<TransportEntry>::all())
          table[py::str(name)] = py::dict("summary"_a = t.summary, "needs"_a = t.needs);
        return table;
      },
      "The registered transports: name -> summary, needs.");
}

}  // namespace

void bind_communicator(py::module_& m) {
  bind_regions(m);
  py::class_<PyCommunicator> type(m, "Communicator", py::dynamic_attr(),
                                  "The ranks of a job and their collectives.");
  bind_by_rank(type);
  bind_heap(m, type);
  bind_point_to_point(type);
  bind_tuning(type);
  type.def("_plan_packs", &PyCommunicator::plan_packs, "xs"_a, "outs"_a, "parts"_a, "reads"_a, "writes"_a,
           "op"_a, "scale"_a,
           "How a list of arrays travels: (places, elements, digest, on a device) of each message, after "
           "their "
           "checks.")
      .def(
          "_packed",
          [](PyCommunicator& c, Text collective, Object x, uint64_t pack, std::optional<py::list> outs,
             Text op, Whole root, Maybe scale, Text algorithm, Segments segments, const Timeout& timeout,
             bool async_op, Handle stream, std::optional<std::string> codec) {
            return c.located([&] {
              const Options options =
                  with_stream(stream, {algorithm, segments, timeout, async_op, pack, codec});
              const int from = number_of("root", root);
              if (py::isinstance<py::list>(x))
                return c.packed_on_device(parse<Collective>("collective", collective, kCollectiveNames), x,
                                          std::move(outs), op, from, scale, options);
              if (collective == "all_reduce") return c.all_reduce(x, op, py::none(), scale, options);
              if (collective == "all_gather") return c.all_gather(x, py::none(), {}, options);
              if (collective == "reduce") return c.reduce(x, from, op, py::none(), scale, options);
              return c.broadcast(x, from, py::none(), options);
            });
          },
          "collective"_a, "x"_a, "pack"_a, py::kw_only(), "outs"_a = py::none(), "op"_a = "sum", "root"_a = 0,
          "scale"_a = py::none(), "algorithm"_a = "auto", "segments"_a = py::none(), "timeout"_a = py::none(),
          "async_op"_a = false, "stream"_a = py::none(), "codec"_a = py::none(),
          "A call on a pack with this digest, or on a list of arrays on a device that are one.");
  type.def(
          "_predict",
          [](PyCommunicator& c, Object x, const std::optional<std::string>& codec, const Timeout& timeout) {
            return c.located([&] {
              py::list rows;
              for (const Choice& choice : c.predict(x, codec, timeout))
                rows.append(py::make_tuple(choice.algorithm, choice.segments, choice.cost_s));
              return rows;
            });
          },
          "x"_a, "codec"_a = py::none(), "timeout"_a = py::none(),
          "What an all_reduce of x would choose from: (algorithm, segments, predicted seconds or, on a "
          "device, "
          "bytes), the\nsame on all ranks.")
      .def(
          "_agreement_time", [](PyCommunicator& c) { return c.core().agreement_time(); },
          "Seconds that the ranks take to agree on one number, by the model; 0: the links are not known.")
      .def(
          "_settled_without_codec",
          [](PyCommunicator& c, Object x, const std::string& codec, bool tells_error) -> py::object {
            const auto taken = c.settled_without_codec(x, codec, tells_error);
            return taken ? py::make_tuple(taken->algorithm, taken->segments) : Object(py::none());
          },
          "x"_a, "codec"_a, "tells_error"_a,
          "(algorithm, segments) that \"auto\" has settled to take for a reduce_scatter in place of the "
          "codec;\n"
          "else None. The caller then makes that call, which this has counted.")
      .def(
          "_norms",
          [](PyCommunicator& c, Object x, const std::vector<size_t>& blocks, const Timeout& timeout,
             Handle stream) {
            return c.located([&] { return c.norms(x, blocks, with_stream(stream, {"auto", {}, timeout})); });
          },
          "x"_a, "blocks"_a, "timeout"_a = py::none(), "stream"_a = py::none(),
          "The dtype and count of x, its norm, its largest magnitude, and for each block size (a power of "
          "two up to 1024)\nthe norm of an array that holds at every element the largest magnitude of its "
          "block.")
      .def(
          "_lossy_all_reduce",
          [](PyCommunicator& c, Object x, Text op, Object out, Maybe scale, Text algorithm, int segments,
             Maybe timeout, const std::string& codec, Handle stream) {
            double lost_sq = 0;
            Options options = with_stream(stream, {algorithm, segments, timeout});
            options.codec = codec, options.lost_sq = &lost_sq;
            c.located([&] { return c.all_reduce(x, op, out, scale, options); });
            return lost_sq;
          },
          "x"_a, "op"_a, "out"_a, "scale"_a, "algorithm"_a, "segments"_a, "timeout"_a, "codec"_a,
          "stream"_a = py::none(),
          "all_reduce that returns the sum of squares of what this rank's encodings lost.");
  type.def(py::init([](const std::string& transport, int rank, int world, int fd,
                       std::optional<std::shared_ptr<Region>> region, double timeout,
                       const std::optional<Links>& links, bool half_duplex, double jitter, uint64_t seed,
                       std::optional<std::shared_ptr<Wire>> wire, std::vector<int> wire_ranks, int context,
                       std::vector<int> nodes, uint64_t identity, Script script, uint64_t began) {
             std::optional<Emulation> emulation;
             if (links) emulation = {*links, half_duplex, jitter, seed, std::move(script), began};
             Endpoint endpoint{rank, world, fd, region.value_or(nullptr)};
             endpoint.wire = wire.value_or(nullptr), endpoint.wire_ranks = std::move(wire_ranks);
             endpoint.context = context;
             endpoint.nodes = std::move(nodes), endpoint.identity = identity;
             return std::make_unique<PyCommunicator>(transport, std::move(endpoint), timeout, emulation);
           }),
           "transport"_a, "rank"_a, "world"_a, py::kw_only(), "fd"_a = -1, "region"_a = py::none(),
           "timeout"_a = 60.0, "links"_a = py::none(), "half_duplex"_a = false, "jitter"_a = 0.0,
           "seed"_a = 0, "wire"_a = py::none(), "wire_ranks"_a = std::vector<int>{}, "context"_a = 0,
           "nodes"_a = std::vector<int>{}, "identity"_a = 0, "script"_a = Script{}, "began"_a = 0)
      .def(
          "all_reduce",
          [](PyCommunicator& c, Object x, Text op, Object out, Maybe scale, Text algorithm, Segments segments,
             const Timeout& timeout, bool async_op, Handle stream, std::optional<std::string> codec,
             Object error, Maybe max_rel_err) {
            if (max_rel_err)
              return bounded(c, x, *max_rel_err, "op"_a = op, "out"_a = out, "scale"_a = scale,
                             "algorithm"_a = algorithm, "segments"_a = pieces(c, segments),
                             "timeout"_a = seconds(c, timeout), "async_op"_a = async_op, "stream"_a = stream,
                             "codec"_a = codec, "error"_a = error);
            if (several(x))
              return coalesced(c, "all_reduce", x, "op"_a = op, "out"_a = out, "scale"_a = scale,
                               "algorithm"_a = algorithm, "segments"_a = pieces(c, segments),
                               "timeout"_a = seconds(c, timeout), "async_op"_a = async_op,
                               "stream"_a = stream, "codec"_a = codec, "error"_a = error);
            return c.located([&] {
              return c.all_reduce(
                  x, op, out, scale,
                  with_stream(stream, {algorithm, segments, timeout, async_op, 0, codec, error}));
            });
          },
          "x"_a, "op"_a = "sum", py::kw_only(), "out"_a = py::none(), "scale"_a = py::none(),
          "algorithm"_a = "auto", "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), "codec"_a = py::none(), "error"_a = py::none(),
          "max_rel_err"_a = py::none(), kAllReduce)
      .def(
          "reduce",
          [](PyCommunicator& c, Object x, Whole root, Text op, Object out, Maybe scale, Text algorithm,
             Segments segments, const Timeout& timeout, bool async_op, Handle stream) {
            if (several(x))
              return coalesced(c, "reduce", x, "op"_a = op, "root"_a = rank_of(c, root), "out"_a = out,
                               "scale"_a = scale, "algorithm"_a = algorithm,
                               "segments"_a = pieces(c, segments), "timeout"_a = seconds(c, timeout),
                               "async_op"_a = async_op, "stream"_a = stream);
            return c.located([&] {
              return c.reduce(x, number_of("root", root), op, out, scale,
                              with_stream(stream, {algorithm, segments, timeout, async_op}));
            });
          },
          "x"_a, "root"_a = 0, "op"_a = "sum", py::kw_only(), "out"_a = py::none(), "scale"_a = py::none(),
          "algorithm"_a = "auto", "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), kReduce)
      .def(
          "broadcast",
          [](PyCommunicator& c, Object x, Whole root, Object out, Text algorithm, Segments segments,
             const Timeout& timeout, bool async_op, Handle stream) {
            if (several(x.is_none() ? out : x))
              return coalesced(c, "broadcast", x, "root"_a = rank_of(c, root), "out"_a = out,
                               "algorithm"_a = algorithm, "segments"_a = pieces(c, segments),
                               "timeout"_a = seconds(c, timeout), "async_op"_a = async_op,
                               "stream"_a = stream);
            return c.located([&] {
              return c.broadcast(x, number_of("root", root), out,
                                 with_stream(stream, {algorithm, segments, timeout, async_op}));
            });
          },
          "x"_a, "root"_a = 0, py::kw_only(), "out"_a = py::none(), "algorithm"_a = "auto",
          "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false, "stream"_a = py::none(),
          kBroadcast)
      .def(
          "barrier",
          [](PyCommunicator& c, const Timeout& timeout, bool async_op) {
            return c.located([&] { return c.barrier(timeout, async_op); });
          },
          "timeout"_a = py::none(), py::kw_only(), "async_op"_a = false,
          "Returns when every rank has called it; with async_op a Work at once, which is done then.")
      .def("abort", &PyCommunicator::abort,
           "Ends it on every rank, at once and for good: calls under way and later ones raise and name this "
           "rank.")
      .def("_survivors", &PyCommunicator::survivors, "round"_a, "patience"_a,
           "After a fault: the ranks that go on, the same on all of them; this one may have come too late.")
      .def(
          "_keep", [](PyCommunicator& c, int round, bool proposal) { return c.core().keep(round, proposal); },
          "round"_a, "proposal"_a, "Whether what the survivors have made is kept: as the first of them said.")
      .def(
          "_abandoned", [](PyCommunicator& c, int round) { return c.core().abandoned_in(round); }, "round"_a,
          "Whether the first of them has said that it is not.")
      .def_property_readonly(
          "_identity", [](PyCommunicator& c) { return c.core().identity(); },
          "A number that only the ranks of this communicator know; 0: its maker gave none.")
      .def(
          "_set_coding",
          [](PyCommunicator& c, const std::string& codec, double encode, double decode) {
            c.core().set_coding(*smallest(parse_codec(codec), c.core().world()), {1, encode, decode});
          },
          "codec"_a, "encode"_a, "decode"_a,
          "What \"auto\" takes for a codec's seconds a byte; the same on every rank.")
      .def("_time_codec", &PyCommunicator::time_codec, "codec"_a,
           "What \"auto\" needs to know of a codec; every rank must call it at the same point of its calls.")
      .def(
          "_refuse",
          [](PyCommunicator& c, const std::string& call, const py::str& why) {
            c.core().refuse(call, first_line(why, std::string::npos));
          },
          "call"_a, "why"_a,
          "Tells the other ranks that this one does not make the next call, \"split\" say.")
      .def(
          "_check_waiting",
          [](PyCommunicator& c, const std::vector<int>& ranks, const std::string& call) {
            c.core().check_waiting(ranks, call);
          },
          "ranks"_a, "call"_a, py::call_guard<py::gil_scoped_release>(),
          "Raises what ends a wait for these ranks that is none of its calls; a fault as any: on every rank.")
      .def(
          "_give_up",
          [](PyCommunicator& c, const std::string& kind, const std::string& why) {
            c.core().give_up(Error(kind_of(kind), why));
          },
          "kind"_a, "why"_a, py::call_guard<py::gil_scoped_release>(),
          "Ends it on every rank by an error, of the class of this name.")
      .def("_set_part_of", &PyCommunicator::set_part_of, "call"_a,
           "The calls from here on are parts of this one, \"gather_objects\" say; \"\": of none.")
      .def("close", &PyCommunicator::end,
           R"(Ends this rank's part; calls under way fail on every rank. Again: nothing.

Raises:
    MismatchError: the ranks have not made the same calls, and none was left that would have shown it: two
        roots of a short broadcast, say. It is closed all the same.
    InvalidArgumentError: a codec could not carry an element of a device's array, and no call was left that
        would have told it. The same.)")
      .def("stats", &PyCommunicator::stats,
           "Since the start: bytes_sent, bytes_received (payload), messages_sent, calls and, of these, "
           "device_calls, "
           "on\narrays of devices, which count once they are enqueued; of pieces: encodes, decodes. "
           "enqueuing_s: "
           "the seconds\nthat this rank has taken to enqueue such calls, of ranks that are threads for all "
           "of them.")
      .def(
          "flight_log", [](PyCommunicator& c) { return flight_log(c.core()); },
          "The last calls of every rank, a list of dicts: rank, sequence, call, state (\"done\", \"under "
          "way\"); of\nsends and receives, which count apart, also op (\"send\", \"recv\") and peer.")
      .def("set_links", &set_links, "links"_a,
           "What \"auto\" computes with, a model as gpucomm.links.parse_model makes one for as many ranks; "
           "must "
           "be\nthe same on every rank.")
      .def(
          "freeze", [](PyCommunicator& c) { c.core().freeze(); },
          "From here on \"auto\" chooses by the model alone, with typical figures unless the links are known "
          "by now:\nthe same on every machine and in every run. Every rank must call it at the same point of "
          "its calls.")
      .def_property_readonly(
          "frozen", [](const PyCommunicator& c) { return c.core().frozen(); }, "Whether freeze() was called.")
      .def_property_readonly(
          "links", [](const PyCommunicator& c) { return c.core().links(); },
          "The model of the links that \"auto\" computes with.")
      .def_property_readonly(
          "emulation",
          [](const PyCommunicator& c) {
            py::dict keywords;
            if (const auto& e = c.emulation()) {
              keywords["links"] = e->links, keywords["half_duplex"] = e->half_duplex;
              keywords["jitter"] = e->jitter_s, keywords["seed"] = e->seed;
              keywords["script"] = e->script, keywords["began"] = e->began_ns;
            }
            return keywords;
          },
          "The keywords that gave it emulated links; empty without.")
      .def_property_readonly(
          "rank", [](const PyCommunicator& c) { return c.core().rank(); },
          "This process's number, 0 to world - 1.")
      .def_property_readonly(
          "world", [](const PyCommunicator& c) { return c.core().world(); }, "How many ranks there are.")
      .def_property_readonly(
          "nodes", [](const PyCommunicator& c) { return py::tuple(py::cast(c.core().nodes())); },
          "The node of each rank, numbered from 0.")
      .def_property_readonly(
          "transport", [](const PyCommunicator& c) { return c.core().transport_name(); },
          "The transport's name.")
      .def_property_readonly(
          "timeout", [](const PyCommunicator& c) { return c.core().timeout().count(); },
          "Seconds that a call may take unless it says otherwise.")
      .def_property_readonly(
          "closed",
          [](const PyCommunicator& c) { return c.core().closed() || c.core().fate().fault().has_value(); },
          "Whether it was closed, by close() or by a fault, of any rank.")
      .def_property_readonly(
          "_busy", [](const PyCommunicator& c) { return !forked() && c.core().busy(); },
          "Whether collectives of this process are under way.");
}

}  // namespace gpucomm
