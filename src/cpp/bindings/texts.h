// Text that objects of Python give of themselves, as much as a sentence takes. None of these fails.
#pragma once
#include <pybind11/pybind11.h>

#include <string>

namespace gpucomm {

inline std::string type_name(pybind11::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// The first line of its str(), cut behind a whole character; empty where it has none.
std::string first_line(pybind11::handle object, size_t most_bytes);

// The first line of its repr(); its type where it has none.
std::string shown(pybind11::handle value, size_t most_bytes = 100);

// The first line of an error, which has a type where it has no text.
inline std::string said_by(const pybind11::error_already_set& error, size_t most_bytes) {
  const std::string said = first_line(error.value(), most_bytes);
  return said.empty() ? type_name(error.value()) : said;
}

}  // namespace gpucomm
