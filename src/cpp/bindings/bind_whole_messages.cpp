// The collectives whose message is one for all ranks, and the barrier.
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/bind_communicator.h"
#include "bindings/coalesced.h"
#include "bindings/docstrings.h"
#include "bindings/whole.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

void bind_whole_messages(py::class_<PyCommunicator>& type) {
  type.def(
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
          R"(Returns when every rank has called it.

Args:
    timeout, async_op: as in all_reduce.

Raises:
    as all_reduce.)");
}

}  // namespace gpucomm
