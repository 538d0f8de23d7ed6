// Arguments that fit no signature, and what is said of them.
#pragma once
#include <pybind11/pybind11.h>

#include <string>

namespace gpucomm {

// Of a call as Python's vectorcall makes it, without self.
struct Given {
  PyObject* const* args;
  Py_ssize_t count;  // of those by their place; the named ones follow
  PyObject* names;   // a tuple, or null

  Py_ssize_t named() const { return names ? PyTuple_GET_SIZE(names) : 0; }
  // The argument at this place behind self, or of this name; null where there is none.
  PyObject* find(const char* name, Py_ssize_t place) const;
  // "ndarray, root='a'"
  std::string text() const;
  // Whether a name is none of any signature for sure, without a look at one: not ASCII.
  bool misnamed() const;
};

}  // namespace gpucomm
