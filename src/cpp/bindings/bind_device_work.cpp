// The work of a device one by one, for tests and benchmarks.
#include <pybind11/stl.h>

#include <tuple>
#include <vector>

#include "bindings/devices.h"
#include "bindings/interpreter.h"
#include "bindings/names.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

void bind_work_of_devices(py::class_<Device, std::shared_ptr<Device>>& type) {
  type.def("name", &Device::name, "As error texts name it.")
      .def("shares", &Device::shares, py::call_guard<Released>(),
           "Why other processes cannot open its memory, or nothing.")
      .def(
          "make_stream", [](Device& d) { return reinterpret_cast<Address>(d.make_stream()); },
          "A stream's handle.")
      .def(
          "end_stream",
          [](Device& d, Address s) {
            const Released r;
            d.end_stream(handle(s));
          },
          "stream"_a, "Ends a stream of make_stream.")
      .def(
          "make_event", [](Device& d) { return reinterpret_cast<Address>(d.make_event()); },
          "An event's handle.")
      .def(
          "end_event", [](Device& d, Address e) { d.end_event(handle(e)); }, "event"_a,
          "Ends an event of make_event.")
      .def(
          "record", [](Device& d, Address e, Address s) { d.record(handle(e), handle(s)); }, "event"_a,
          "stream"_a = 0, "The event is done when all is that the stream holds now.")
      .def(
          "wait", [](Device& d, Address s, Address e) { d.wait(handle(s), handle(e)); }, "stream"_a,
          "event"_a, "What the stream gets from now on comes after the event as it was last recorded.")
      .def(
          "done", [](Device& d, Address e) { return d.done(handle(e)); }, "event"_a,
          "Whether what the event was recorded behind has ended.")
      .def(
          "copy",
          [](Device& d, Address to, Address from, size_t n, Address s) {
            d.copy(pointer(to), pointer(from), n, handle(s));
          },
          "to"_a, "source"_a, "nbytes"_a, "stream"_a = 0, "Enqueues a copy.")
      .def(
          "reduce",
          [](Device& d, Text dtype, Text op, const std::vector<Address>& to, const std::vector<Address>& from,
             size_t count, int divisor, Address s) {
            Fold fold{parse_dtype(dtype), parse_op(op), divisor, {}, {}, count};
            for (const Address a : to) fold.destinations.push_back(pointer(a));
            for (const Address a : from) fold.sources.push_back(pointer(a));
            d.reduce(fold, handle(s));
          },
          "dtype"_a, "op"_a, "to"_a, "sources"_a, "count"_a, "divisor"_a = 1, "stream"_a = 0,
          "Enqueues a fold of the sources, in their order, into each of `to`.")
      .def(
          "copy_all",
          [](Device& d, const std::vector<std::tuple<Address, Address, size_t>>& all, Address s) {
            std::vector<Copy> copies;
            for (const auto& [to, from, bytes] : all) copies.push_back({pointer(to), pointer(from), bytes});
            d.copy_all(copies, handle(s));
          },
          "copies"_a, "stream"_a = 0,
          "Enqueues copies side by side: of each where to, where from, and how many bytes.")
      .def(
          "scale",
          [](Device& d, Text dtype, Address to, Address from, size_t count, double factor, Address s) {
            d.scale(parse_dtype(dtype), pointer(to), pointer(from), count, factor, handle(s));
          },
          "dtype"_a, "to"_a, "source"_a, "count"_a, "factor"_a, "stream"_a = 0,
          "Enqueues a multiplication of floats.")
      .def(
          "convert",
          [](Device& d, Text from, Address in, Text to, Address out, size_t count, Address s) {
            d.convert(parse_dtype(from), pointer(in), parse_dtype(to), pointer(out), count, handle(s));
          },
          "source_dtype"_a, "source"_a, "dtype"_a, "to"_a, "count"_a, "stream"_a = 0,
          "Enqueues floats of up to 32 bits from one dtype to another, each rounded once.")
      .def(
          "difference",
          [](Device& d, Text dtype, Address dense, Address error, int times, size_t count, Address s) {
            d.difference(parse_dtype(dtype), pointer(dense), pointer(error), times, count, handle(s));
          },
          "dtype"_a, "dense"_a, "error"_a, "times"_a, "count"_a, "stream"_a = 0,
          "Enqueues error = times (dense - error), as codings tell what they lose.")
      .def(
          "add_squares",
          [](Device& d, Text dtype, Address x, size_t count, Address parts, unsigned blocks, Address became,
             int times, Address s) {
            d.add_squares({parse_dtype(dtype), pointer(x), count, blocks, pointer(became), times},
                          pointer(parts), handle(s));
          },
          "dtype"_a, "x"_a, "count"_a, "parts"_a, "blocks"_a = 1, "became"_a = 0, "times"_a = 1,
          "stream"_a = 0,
          "Enqueues sums of squares of x, for block sizes that are bits of `blocks`, or of times (became - "
          "x).")
      .def(
          "encode",
          [](Device& d, Text codec, Text dtype, Address dense, size_t count, Address slot, Address s) {
            d.encode_all({{{parse_codec(codec), parse_dtype(dtype), count}, pointer(dense), pointer(slot)}},
                         handle(s));
          },
          "codec"_a, "dtype"_a, "dense"_a, "count"_a, "slot"_a, "stream"_a = 0,
          "Enqueues an encoding: 8 bytes with the number of coded bytes, then these.")
      .def(
          "decode",
          [](Device& d, Text codec, Text dtype, Address slot, Address dense, size_t count, bool adds,
             int divisor, Address s) {
            d.decode({parse_codec(codec), parse_dtype(dtype), count}, pointer(slot), pointer(dense), adds,
                     divisor, handle(s));
          },
          "codec"_a, "dtype"_a, "slot"_a, "dense"_a, "count"_a, "adds"_a = false, "divisor"_a = 1,
          "stream"_a = 0, "Enqueues a decoding of what encode made.")
      .def(
          "recode",
          [](Device& d, Text codec, Text dtype, Address from, Address own, size_t count, Address to,
             Address s) {
            d.recode_all(
                {{{parse_codec(codec), parse_dtype(dtype), count}, pointer(from), pointer(own), pointer(to)}},
                handle(s));
          },
          "codec"_a, "dtype"_a, "source"_a, "own"_a, "count"_a, "to"_a, "stream"_a = 0,
          "Enqueues to = coded (decoded source + own).")
      .def(
          "add_coded",
          [](Device& d, Text codec, Text dtype, Address from, Address into, size_t count, Address s) {
            d.add_coded({parse_codec(codec), parse_dtype(dtype), count}, pointer(from), pointer(into),
                        handle(s));
          },
          "codec"_a, "dtype"_a, "source"_a, "into"_a, "count"_a, "stream"_a = 0,
          "Enqueues into += source, both coded by an additive codec.")
      .def("failure", &Device::failure, "What went wrong in work that has run, or nothing.");
}

}  // namespace gpucomm
