// pybind11's dispatcher tells of arguments that fit no signature outside of its try: the name of a keyword
// that is no UTF-8 ("\ud800") would end the process there.
#include "bindings/bind.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

using Dispatcher = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
Dispatcher dispatcher = nullptr;  // pybind11 has one for all functions

PyObject* guarded(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  try {
    return dispatcher(self, args, count, names);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

void guard(py::handle member) {
  const py::handle function = py::detail::get_function(member);
  if (!function || !PyCFunction_Check(function.ptr())) return;
  PyMethodDef* const definition = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
  if (definition->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) return;
  const auto own = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guarded));
  if (definition->ml_meth == own) return;
  dispatcher = reinterpret_cast<Dispatcher>(reinterpret_cast<void (*)()>(definition->ml_meth));
  definition->ml_meth = own;
}

}  // namespace

void guard_functions(py::module_& m) {
  for (const auto& [name, member] : py::dict(m.attr("__dict__"))) {
    guard(member);
    if (!PyType_Check(member.ptr())) continue;
    for (const auto& [own, method] : py::dict(member.attr("__dict__"))) guard(method);
  }
}

}  // namespace gpucomm
