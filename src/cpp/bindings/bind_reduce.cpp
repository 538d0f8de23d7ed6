// The host reduction, for tests.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>

#include "base/copy.h"
#include "base/error.h"
#include "base/simd.h"
#include "bindings/bind.h"
#include "bindings/names.h"
#include "reduce/reduce.h"
#include "reduce/scale.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

static py::array fold(const std::string& dtype, const std::string& op, const std::vector<py::array>& sources,
                      int divisor, std::optional<py::array> out, std::optional<py::array> twin) {
  const Dtype type = parse_dtype(dtype);
  if (bitwise(parse_op(op)) && is_float(type))
    fail(ErrorKind::unsupported_type, "op '", op, "' is not defined for ", dtype, " arrays");
  if (sources.empty()) fail(ErrorKind::invalid_argument, "reduce needs at least one source");
  std::vector<const void*> pointers;
  for (const py::array& source : sources) {
    if (source.size() != sources[0].size() || source.itemsize() != static_cast<py::ssize_t>(size_of(type)))
      fail(ErrorKind::invalid_argument, "all sources must have the same size and elements of ", size_of(type),
           " bytes");
    pointers.push_back(source.data());
  }
  py::array result = out ? *out : py::array(sources[0].dtype(), sources[0].size());
  for (const py::array& to : {result, twin.value_or(result)})
    if (to.size() != sources[0].size() || to.itemsize() != sources[0].itemsize())
      fail(ErrorKind::invalid_argument, "out and twin must have the sources' size and element size");
  reduce(type, parse_op(op), result.mutable_data(), pointers.data(), static_cast<int>(pointers.size()),
         result.size(), divisor, twin ? twin->mutable_data() : nullptr);
  return result;
}

static py::array scaled(const std::string& dtype, const py::array& x, double factor) {
  py::array result(x.dtype(), x.size());
  scale(parse_dtype(dtype), result.mutable_data(), x.data(), x.size(), factor);
  return result;
}

template <auto kCopy>
static auto copied(py::array to, const py::array& from) {
  if (to.nbytes() != from.nbytes() || to.nbytes() < 32)
    fail(ErrorKind::invalid_argument, "to and from must have as many bytes, and 32 or more, got ",
         to.nbytes(), " and ", from.nbytes());
  return kCopy(to.mutable_data(), from.data(), to.nbytes());
}

void bind_reduce(py::module_& m) {
  m.def("copy_by_loop", &copied<copy_by_loop>, "to"_a, "from_"_a,
        "Copies between 1-D arrays as AMD's processors do it; False where this one cannot. For tests.");
  m.def("copy_non_temporal", &copied<copy_non_temporal>, "to"_a, "from_"_a,
        "Copies between 1-D arrays past the caches. For tests.");
  m.def("scale", &scaled, "dtype"_a, "x"_a, "factor"_a, "A 1-D array times a factor; for tests.");
  m.def("reduce", &fold, "dtype"_a, "op"_a, "sources"_a, "divisor"_a = 1, "out"_a = py::none(),
        "twin"_a = py::none(), "Folds 1-D contiguous arrays in their order; for tests.");
  m.def("simd_level", &simd_level, "The SIMD level of reductions and codecs.");
  m.def("simd_levels", &simd_levels, "The SIMD levels that this CPU can run.");
  m.def("set_simd_level", &set_simd_level, "level"_a, "Forces a SIMD level.");
}

}  // namespace gpucomm
