// The yardstick of the benchmark.
#include <pybind11/numpy.h>

#include "base/error.h"
#include "bindings/bind.h"
#include "bindings/interpreter.h"
#include "limit/limit.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

using Floats = py::array_t<float, py::array::c_style>;

struct PyLimit {
  py::buffer_info region;
  Limit limit;

  PyLimit(const py::buffer& memory, int rank, int world, double timeout_s)
      : region(memory.request(true)), limit(checked(region, world), rank, world, timeout_s) {}

  static std::byte* checked(const py::buffer_info& region, int world) {
    const size_t bytes = static_cast<size_t>(region.size * region.itemsize);
    if (bytes < Limit::region_bytes(world))
      fail(ErrorKind::invalid_argument, "the region must have ", Limit::region_bytes(world), " bytes, got ",
           bytes);
    return static_cast<std::byte*>(region.ptr);
  }
};

struct LimitCall {
  std::function<void()> call;
};

}  // namespace

void bind_limit(py::module_& m) {
  py::class_<LimitCall>(m, "LimitCall", "A call of Limit, ready to be made.")
      .def("__call__", [](const LimitCall& c) {
        const Released released;
        c.call();
      });
  py::class_<PyLimit>(m, "Limit",
                      R"(Collectives of processes on one node as plain loops: what its memory allows.

float32, sum, in place, root 0; for the benchmark.)")
      .def(py::init<const py::buffer&, int, int, double>(), "region"_a, "rank"_a, "world"_a, "timeout_s"_a)
      .def_static("region_bytes", &Limit::region_bytes, "world"_a,
                  "The size of the memory that all ranks share.")
      .def(
          "call",
          [](PyLimit& self, const std::string& collective, const std::string& way, const Floats& x) {
            const auto which = way == "staged" ? LimitWay::staged : LimitWay::attach;
            auto* const data = const_cast<float*>(x.data());
            const Released released;
            return LimitCall{self.limit.call(collective, which, data, static_cast<size_t>(x.size()))};
          },
          "collective"_a, "way"_a, "x"_a.noconvert(), py::keep_alive<0, 1>(), py::keep_alive<0, 4>(),
          "A call on this array: `way` \"staged\" or \"attach\".");
}

}  // namespace gpucomm
