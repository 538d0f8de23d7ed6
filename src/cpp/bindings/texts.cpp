#include "bindings/texts.h"

#include <algorithm>

namespace py = pybind11;

namespace gpucomm {
namespace {

// `made`: a new reference to a str, or null with the error of making it.
std::string first_line_of(PyObject* made, size_t most_bytes) {
  const auto text = py::reinterpret_steal<py::object>(made);
  const auto utf8 = py::reinterpret_steal<py::object>(
      text ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  if (!utf8) return PyErr_Clear(), "";
  const std::string all(PyBytes_AS_STRING(utf8.ptr()), PyBytes_GET_SIZE(utf8.ptr()));
  size_t end = std::min({all.find('\n'), all.size(), most_bytes});
  while (end && end < all.size() && (all[end] & 0xc0) == 0x80) --end;
  return all.substr(0, end);
}

}  // namespace

std::string first_line(py::handle object, size_t most_bytes) {
  return first_line_of(PyObject_Str(object.ptr()), most_bytes);
}

std::string shown(py::handle value, size_t most_bytes) {
  const std::string line = first_line_of(PyObject_Repr(value.ptr()), most_bytes);
  return line.empty() ? "a " + type_name(value) + " without a repr()" : line;
}

}  // namespace gpucomm
