// What "auto" chooses, for tests and the command line.
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/names.h"
#include "engine/programs.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

void bind_choose(py::module_& m) {
  m.def(
      "choose",
      [](Text collective, size_t nbytes, int world, const Links& links, int root, Text algorithm,
         std::vector<int> nodes, const std::optional<std::string>& codec, double encode, double decode,
         bool on_device) {
        Shape shape{.collective = parse<Collective>("collective", collective, kCollectiveNames)};
        shape.dtype = Dtype::uint8, shape.count = nbytes, shape.root = root, shape.algorithm = algorithm;
        shape.on_device = on_device;
        build_plan(algorithm == "auto" ? "direct" : algorithm,
                   {shape.collective, world, 0, root, 1, true, nodes});  // validates
        Coding coding{1, encode, decode};
        if (codec) {
          shape.codec = smallest(parse_codec(*codec), world), shape.dtype = Dtype::float32,
          shape.count /= sizeof(float);
          coding.ratio = shape.codec->bytes_a_byte(shape.dtype);
        }
        check_coding(shape);
        if (nodes.empty()) nodes = links.nodes;
        if (nodes.empty()) nodes.assign(world, 0);
        const Choice choice = Choices().find(shape, nodes, links, coding).front();
        return py::make_tuple(choice.algorithm, choice.segments, choice.cost_s);
      },
      "collective"_a, "nbytes"_a, "world"_a, "links"_a, "root"_a = 0, "algorithm"_a = "auto",
      "nodes"_a = std::vector<int>{}, "codec"_a = py::none(), "encode"_a = 0.0, "decode"_a = 0.0,
      "on_device"_a = false,
      "What a communicator chooses on such links: (algorithm, segments, predicted seconds); of one "
      "algorithm: its segments.\nWith a codec, which takes such seconds a byte of float32, also from those "
      "that code; on_device: only from plans that a device can run.");
  m.def(
      "most_bytes",
      [](size_t nbytes) { return most_bytes(kind_of({.dtype = Dtype::uint8, .count = nbytes})); }, "nbytes"_a,
      "The largest message that is chosen for as one of so many bytes is.");
  m.def("least_segment", &least_segment, "links"_a, "The bytes below which \"auto\" cuts no message.");
}

}  // namespace gpucomm
