#include "bindings/texts.h"

#include <algorithm>

namespace py = pybind11;

namespace gpucomm {

std::string first_line(py::handle object, size_t most_bytes) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(object.ptr()));
  const auto utf8 = py::reinterpret_steal<py::object>(
      text ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "replace") : nullptr);
  if (!utf8) return PyErr_Clear(), "";
  const std::string all = PyBytes_AsString(utf8.ptr());
  size_t end = std::min({all.find('\n'), all.size(), most_bytes});
  while (end && end < all.size() && (all[end] & 0xc0) == 0x80) --end;
  return all.substr(0, end);
}

}  // namespace gpucomm
