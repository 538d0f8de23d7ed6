// Text that objects of Python give of themselves, as much as a sentence takes.
#pragma once
#include <pybind11/pybind11.h>

#include <string>

namespace gpucomm {

inline std::string type_name(pybind11::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// The first line of its str(), cut behind a whole character; empty where it has none.
std::string first_line(pybind11::handle object, size_t most_bytes);

}  // namespace gpucomm
