// The signatures and docstrings of the communicator.
#include "bindings/bind_communicator.h"

#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/texts.h"
#include "transports/regions.h"
#include "transports/wire.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

void set_links(PyCommunicator& c, const py::object& given) try {
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
  m.def("shm_create", &make_shm_fd, "world"_a, "heap_bytes"_a = py::none(),
        "A memfd for the communicator of `world` processes, each with a heap of so many bytes (None: its "
        "share of the\nmachine's memory); the caller closes it.");
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
  bind_whole_messages(type);
  bind_internal(type);
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
      .def("abort", &PyCommunicator::abort,
           "Ends it on every rank, at once and for good: calls under way and later ones raise and name this "
           "rank.")
      .def_property_readonly(
          "_identity", [](PyCommunicator& c) { return c.core().identity(); },
          "A number that only the ranks of this communicator know; 0: its maker gave none.")
      .def("close", &PyCommunicator::end,
           R"(Ends this rank's part; calls under way fail on every rank. Again: nothing.

Raises:
    MismatchError: the ranks have not made the same calls, and none was left that would have shown it: two
        roots of a short broadcast, say. It is closed all the same.
    InvalidArgumentError: a codec could not carry an element of a device's array, and no call was left that
        would have told it. The same.)")
      .def("stats", &PyCommunicator::stats,
           "Since the start: bytes_sent, bytes_received (payload), messages_sent, calls and, of these, "
           "device_calls, on\narrays of devices, which count once they are enqueued; of pieces: encodes, "
           "decodes. enqueuing_s: the seconds\nthat this rank has taken to enqueue such calls, of ranks that "
           "are threads for all of them.")
      .def(
          "flight_log", [](PyCommunicator& c) { return flight_log(c.core()); },
          "The last calls of every rank, a list of dicts: rank, sequence, call, state (\"done\", \"under "
          "way\"); of\nsends and receives, which count apart, also op (\"send\", \"recv\") and peer.")
      .def("set_links", &set_links, "links"_a,
           "What \"auto\" computes with, a model as gpucomm.links.parse_model makes one for as many ranks; "
           "must be\nthe same on every rank.")
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
