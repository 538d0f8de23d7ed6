// What Python's own layers ask a communicator for: lists of arrays, calls with a bound on their error,
// survivors.
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/bind_communicator.h"
#include "bindings/interpreter.h"
#include "bindings/names.h"
#include "bindings/texts.h"
#include "bindings/whole.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

void bind_lists(py::class_<PyCommunicator>& type) {
  type.def("_plan_packs", &PyCommunicator::plan_packs, "xs"_a, "outs"_a, "parts"_a, "reads"_a, "writes"_a,
           "op"_a, "scale"_a,
           "How a list of arrays travels: (places, elements, digest, on a device) of each message, after "
           "their checks.")
      .def(
          "_packed",
          [](PyCommunicator& c, Text collective, Object x, uint64_t pack, std::optional<py::list> outs,
             Text op, Whole root, Maybe scale, Text algorithm, Segments segments, const Timeout& timeout,
             bool async_op, Handle stream, std::optional<std::string> codec) {
            return c.located([&] {
              const Options options{algorithm, segments, timeout, async_op, stream, codec, py::none(), pack};
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
}

void bind_choices(py::class_<PyCommunicator>& type) {
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
          "device, bytes), the\nsame on all ranks.")
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
            return c.located([&] { return c.norms(x, blocks, {"auto", {}, timeout, false, stream}); });
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
            Options options{algorithm, segments, timeout, false, stream, codec};
            options.lost_sq = &lost_sq;
            c.located([&] { return c.all_reduce(x, op, out, scale, options); });
            return lost_sq;
          },
          "x"_a, "op"_a, "out"_a, "scale"_a, "algorithm"_a, "segments"_a, "timeout"_a, "codec"_a,
          "stream"_a = py::none(),
          "all_reduce that returns the sum of squares of what this rank's encodings lost.")
      .def(
          "_set_coding",
          [](PyCommunicator& c, const std::string& codec, double encode, double decode) {
            c.core().set_coding(*smallest(parse_codec(codec), c.core().world()), {1, encode, decode});
          },
          "codec"_a, "encode"_a, "decode"_a,
          "What \"auto\" takes for a codec's seconds a byte; the same on every rank.")
      .def("_time_codec", &PyCommunicator::time_codec, "codec"_a,
           "What \"auto\" needs to know of a codec; every rank must call it at the same point of its calls.");
}

void bind_faults(py::class_<PyCommunicator>& type) {
  type.def("_survivors", &PyCommunicator::survivors, "round"_a, "patience"_a,
           "After a fault: the ranks that go on, the same on all of them; this one may have come too late.")
      .def(
          "_keep", [](PyCommunicator& c, int round, bool proposal) { return c.core().keep(round, proposal); },
          "round"_a, "proposal"_a, "Whether what the survivors have made is kept: as the first of them said.")
      .def(
          "_abandoned", [](PyCommunicator& c, int round) { return c.core().abandoned_in(round); }, "round"_a,
          "Whether the first of them has said that it is not.")
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
          "ranks"_a, "call"_a, py::call_guard<Released>(),
          "Raises what ends a wait for these ranks that is none of its calls; a fault as any: on every rank.")
      .def(
          "_give_up",
          [](PyCommunicator& c, const std::string& kind, const std::string& why) {
            c.core().give_up(Error(kind_of(kind), why));
          },
          "kind"_a, "why"_a, py::call_guard<Released>(),
          "Ends it on every rank by an error, of the class of this name.")
      .def("_set_part_of", &PyCommunicator::set_part_of, "call"_a,
           "The calls from here on are parts of this one, \"gather_objects\" say; \"\": of none.");
}

}  // namespace

void bind_internal(py::class_<PyCommunicator>& type) {
  bind_lists(type);
  bind_choices(type);
  bind_faults(type);
}

}  // namespace gpucomm
