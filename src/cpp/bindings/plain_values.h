// Arguments of the types that they usually have; false: of another, which pybind11 may know.
#pragma once
#include <Python.h>

#include <climits>
#include <cstdint>
#include <optional>

#include "bindings/parts.h"

namespace gpucomm {

template <class String>  // a view is of the string that the caller holds
inline bool take(PyObject* value, String& text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, &size) : nullptr;
  if (!bytes) return PyErr_Clear(), false;
  text = String(bytes, size);
  return true;
}

inline bool take(PyObject* value, std::optional<int>& number) {
  if (value == Py_None) return true;
  int overflow = 0;
  const long n = PyLong_CheckExact(value) ? PyLong_AsLongAndOverflow(value, &overflow) : LONG_MAX;
  if (overflow || n < INT_MIN || n > INT_MAX) return false;
  number = static_cast<int>(n);
  return true;
}

inline bool take(PyObject* value, std::optional<double>& number) {
  std::optional<int> whole;
  if (PyFloat_CheckExact(value)) return number = PyFloat_AS_DOUBLE(value), true;
  if (!take(value, whole)) return false;
  if (whole) number = *whole;
  return true;
}

inline bool take(PyObject* value, std::optional<uintptr_t>& handle) {
  if (value == Py_None) return true;
  const size_t number = PyLong_CheckExact(value) ? PyLong_AsSize_t(value) : SIZE_MAX;
  if (number == SIZE_MAX) return PyErr_Clear(), false;
  handle = number;
  return true;
}

inline bool take(PyObject* value, Counts& counts) {
  if (value == Py_None) return true;
  if (!PyList_CheckExact(value)) return false;
  counts.emplace();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
    std::optional<int> number;
    if (!take(PyList_GET_ITEM(value, i), number) || !number) return false;
    counts->push_back(*number);
  }
  return true;
}

inline bool take(PyObject* value, bool& flag) {
  flag = value == Py_True;
  return flag || value == Py_False;
}

}  // namespace gpucomm
