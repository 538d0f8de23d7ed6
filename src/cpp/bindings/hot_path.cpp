// all_reduce as it is called most, parsed here: pybind11's dispatcher takes as long as a short message. What
// is unusual goes the way of all other calls.
#include <climits>

#include "bindings/bind.h"
#include "bindings/collectives.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

PyObject* usual = nullptr;  // pybind11's own method

struct Call {
  std::string op = "sum";
  Options options{.algorithm = "auto"};
};

bool take(PyObject* value, std::string& text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, &size) : nullptr;
  if (!bytes) return PyErr_Clear(), false;
  text.assign(bytes, size);
  return true;
}

bool take(PyObject* value, std::optional<int>& number) {
  if (value == Py_None) return true;
  int overflow = 0;
  const long n = PyLong_CheckExact(value) ? PyLong_AsLongAndOverflow(value, &overflow) : LONG_MAX;
  if (overflow || n < INT_MIN || n > INT_MAX) return false;
  number = static_cast<int>(n);
  return true;
}

bool take(PyObject* value, std::optional<double>& seconds) {
  if (value != Py_None && !PyFloat_CheckExact(value)) return false;
  if (value != Py_None) seconds = PyFloat_AS_DOUBLE(value);
  return true;
}

bool take(PyObject* value, bool& flag) {
  flag = value == Py_True;
  return flag || value == Py_False;
}

// Names of keywords are interned: the same name is the same object.
bool take(PyObject* name, PyObject* value, Call& call) {
  static PyObject* const op = PyUnicode_InternFromString("op");
  static PyObject* const algorithm = PyUnicode_InternFromString("algorithm");
  static PyObject* const segments = PyUnicode_InternFromString("segments");
  static PyObject* const timeout = PyUnicode_InternFromString("timeout");
  static PyObject* const async_op = PyUnicode_InternFromString("async_op");
  if (name == op) return take(value, call.op);
  if (name == algorithm) return take(value, call.options.algorithm);
  if (name == segments) return take(value, call.options.segments);
  if (name == timeout) return take(value, call.options.timeout_s);
  return name == async_op && take(value, call.options.async_op);
}

bool parse(PyObject* const* args, Py_ssize_t count, PyObject* names, Call& call) {
  if (count < 1 || count > 2 || PyList_Check(args[0]) || PyTuple_Check(args[0])) return false;
  if (count == 2 && !take(args[1], call.op)) return false;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i)
    if (!take(PyTuple_GET_ITEM(names, i), args[count + i], call)) return false;
  return true;
}

PyObject* go_the_usual_way(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + count + (names ? PyTuple_GET_SIZE(names) : 0));
  return PyObject_Vectorcall(usual, all.data(), count + 1, names);
}

PyObject* all_reduce(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  Call call;
  if (!parse(args, count, names, call)) return go_the_usual_way(self, args, count, names);
  try {
    auto& c = py::cast<PyCommunicator&>(py::handle(self));
    const auto x = py::reinterpret_borrow<py::object>(args[0]);
    return c.located([&] { return c.all_reduce(x, call.op, py::none(), {}, call.options); }).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const Error& error) {
    raise(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace

void bind_hot_path(py::module_& m) {
  m.def(
      "hasten",
      [](const py::type& communicator) {
        usual = py::object(communicator.attr("all_reduce")).release().ptr();
        static const std::string doc = py::str(py::handle(usual).attr("__doc__"));
        static PyMethodDef method{"all_reduce",
                                  reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(all_reduce)),
                                  METH_FASTCALL | METH_KEYWORDS, doc.c_str()};
        auto* type = reinterpret_cast<PyTypeObject*>(communicator.ptr());
        communicator.attr("all_reduce") = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &method));
      },
      py::arg("communicator"), "Gives a subclass of Communicator an all_reduce that is quicker to call.");
}

}  // namespace gpucomm
