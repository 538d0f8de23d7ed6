#include "bindings/misfit.h"

#include "base/error.h"
#include "bindings/texts.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

constexpr size_t kEnough = 40;

// A number or a word itself, which may be one that no signature has room for; of all else the type.
std::string told(PyObject* value) {
  const bool plain =
      PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value) || value == Py_None;
  return plain ? shown(value, kEnough) : type_name(value);
}

}  // namespace

PyObject* Given::find(const char* name, Py_ssize_t place) const {
  if (place < count) return args[place];
  for (Py_ssize_t i = 0; i < named(); ++i)
    if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), name)) return args[count + i];
  return nullptr;
}

std::string Given::text() const {
  std::string text;
  for (Py_ssize_t i = 0; i < count + named(); ++i) {
    const std::string name = i < count ? "" : first_line(PyTuple_GET_ITEM(names, i - count), kEnough) + "=";
    text += concat(i ? ", " : "", name, told(args[i]));
  }
  return text;
}

bool Given::misnamed() const {
  for (Py_ssize_t i = 0; i < named(); ++i)
    if (!PyUnicode_IS_ASCII(PyTuple_GET_ITEM(names, i))) return true;
  return false;
}

}  // namespace gpucomm
