#include "bindings/whole.h"

#include <limits>

#include "base/error.h"
#include "bindings/array_facts.h"
#include "bindings/options.h"
#include "bindings/texts.h"

namespace py = pybind11;

namespace gpucomm {

// Of PyTorch's tensors those of bool have an __index__ too.
static bool is_a_bool(py::handle given) {
  if (PyLong_Check(given.ptr())) return PyBool_Check(given.ptr());
  return facts_of(Py_TYPE(given.ptr())).tensor && first_line(given.attr("dtype"), 16) == "torch.bool";
}

std::optional<int64_t> whole(py::handle given) {
  if (!PyIndex_Check(given.ptr()) || is_a_bool(given)) return {};
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(given.ptr()));
  const long long number = index ? PyLong_AsLongLong(index.ptr()) : -1;
  if (!PyErr_Occurred()) return number;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
  PyErr_Clear();  // arrays have an __index__ that refuses
  return {};
}

int number_of(const char* name, const Whole& given) {
  using Limits = std::numeric_limits<int>;
  const auto number = whole(given.given);
  if (!number || *number < Limits::min() || *number > Limits::max())
    fail(ErrorKind::invalid_argument, name, " must be a whole number of 32 bits, got ", shown(given.given));
  return static_cast<int>(*number);
}

Segments::operator std::optional<int>() const {
  const bool cheapest =
      PyUnicode_Check(given.ptr()) && !PyUnicode_CompareWithASCIIString(given.ptr(), "auto");
  if (given.is_none() || cheapest) return {};
  return number_of("segments", {given});
}

Counts counts_of(const char* name, const Wholes& given) {
  if (!given) return {};
  Counts counts(std::in_place);
  for (const Whole& one : *given) {
    const auto number = whole(one.given);
    if (!number)
      fail(ErrorKind::invalid_argument, name, "[", counts->size(),
           "] must be a whole number of 64 bits, got ", shown(one.given));
    counts->push_back(*number);
  }
  return counts;
}

}  // namespace gpucomm
