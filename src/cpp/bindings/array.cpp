#include "bindings/array.h"

#include <pybind11/gil_safe_call_once.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "bindings/array_facts.h"
#include "bindings/array_numpy.h"
#include "bindings/texts.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

constexpr const char* kReadOnly = "is read-only";
constexpr const char* kCopied = "is lent as a copy of what its library holds, which would not get the result";
constexpr const char* kUnsaid =
    "is lent by DLPack before 1.0, which cannot say whether it may be written, as NumPy's and PyTorch's "
    "arrays do";

bool answers_yes(py::handle object, PyObject* method) {
  PyObject* const answer =
      PyObject_VectorcallMethod(method, &object.ptr(), 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!answer) throw py::error_already_set();
  Py_DECREF(answer);
  return answer == Py_True;
}

// DLPack gives the memory of such views as it is. A real one is an imaginary part, every second number in
// memory, so contiguous only where there is one, or by as_strided(): short others are not asked, for to ask
// takes a fifth of their call.
void refuse_lazy(py::handle object, Dtype dtype, size_t count, const char* what) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  static PyObject* const is_conj = PyUnicode_InternFromString("is_conj");
  const bool complex = dtype == Dtype::complex64 || dtype == Dtype::complex128;
  constexpr size_t kShort = 1024;
  if (!complex && (!is_float(dtype) || (count != 1 && count < kShort))) return;
  if (answers_yes(object, is_neg) || (complex && answers_yes(object, is_conj)))
    fail(ErrorKind::unsupported_type, what,
         " is a conjugated or negated view, whose memory holds other values: ",
         "pass x.resolve_conj().resolve_neg()");
}

// torch's integers of fewer bits than a byte has, which DLPack gives as bytes: their sums would be others.
void refuse_parts_of_bytes(py::handle tensor, Dtype dtype, const char* what) {
  if (dtype != Dtype::uint8 && dtype != Dtype::int8) return;
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<std::pair<py::object, py::object>> types;
  const auto& [unsigned_bytes, bytes] =
      types
          .call_once_and_store_result([] {
            const auto torch = py::module_::import("torch");
            return std::pair<py::object, py::object>(torch.attr("uint8"), torch.attr("int8"));
          })
          .get_stored();
  static PyObject* const name = PyUnicode_InternFromString("dtype");
  const auto given = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), name));
  if (!given) throw py::error_already_set();
  if (given.is(unsigned_bytes) || given.is(bytes)) return;
  fail(ErrorKind::unsupported_type, what, " is of dtype ", first_line(given, 40),
       ", whose elements have fewer bits than a byte: pass x.view(torch.uint8), or a copy of another dtype");
}

// "stream" of CUDA's array interface, by which CuPy tells its current one; null: it tells none.
void* stream_told(py::handle object, const char* what) {
  const py::object interface = py::getattr(object, "__cuda_array_interface__", py::none());
  if (!py::isinstance<py::dict>(interface)) return nullptr;
  const py::object stream = interface.attr("get")("stream");
  if (stream.is_none()) return nullptr;
  if (!PyLong_Check(stream.ptr()))
    fail(ErrorKind::unsupported_type, what, " (", type_name(object),
         ") tells a stream by __cuda_array_interface__ that is no number but a ", type_name(stream));
  const size_t handle = PyLong_AsSize_t(stream.ptr());
  if (PyErr_Occurred()) throw py::error_already_set();
  return reinterpret_cast<void*>(handle);
}

// What is no error, as KeyboardInterrupt, is not ours.
[[noreturn]] void cannot_read(py::handle object, const char* what, const py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw error;
  constexpr size_t kEnough = 200;  // torch has a trace of its own functions behind its first line
  const py::object dtype = py::getattr(object, "dtype", py::none());
  const std::string of = dtype.is_none() ? "" : concat(" of dtype ", first_line(dtype, kEnough));
  fail(ErrorKind::unsupported_type, what, " (", type_name(object), of,
       ") cannot be read: ", said_by(error, kEnough));
}

template <class Managed>
Hold held(Managed* managed) {
  return Hold(managed, [](Managed* given) {
    if (given->deleter) given->deleter(given);
  });
}

struct DlpackArguments {
  PyObject* keywords = py::make_tuple("max_version", "stream").release().ptr();
  PyObject* version_only = py::make_tuple("max_version").release().ptr();
  PyObject* stream_only = py::make_tuple("stream").release().ptr();
  PyObject* version = py::make_tuple(1, 1).release().ptr();
  PyObject* no_order = PyLong_FromLong(-1);
};

// ordered: which stream it is used on is known, so its library, which else has CUDA's default stream wait for
// it, and all that waits for that, is asked for no order. Null, with Python's exception set, where it
// refuses.
PyObject* dlpack_capsule(py::handle object, PyObject* name, bool ordered) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<DlpackArguments> made;
  const auto& [keywords, version_only, stream_only, version, no_order] =
      made.call_once_and_store_result([] { return DlpackArguments(); }).get_stored();
  PyObject* arguments[] = {object.ptr(), version, no_order};
  PyObject* capsule = PyObject_VectorcallMethod(name, arguments, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                                ordered ? keywords : version_only);
  if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError)) return capsule;
  PyErr_Clear();  // a producer older than DLPack 1.0
  arguments[1] = no_order;
  return PyObject_VectorcallMethod(name, arguments, 1, ordered ? stream_only : nullptr);
}

}  // namespace

// Delegates, so that what DLPack has handed over goes back where the array is refused.
Array::Array(py::handle object, const char* what, bool anywhere) : Array(anywhere) {
  try {
    borrow(object, what);
  } catch (const py::error_already_set& error) {
    cannot_read(object, what, error);
  }
}

void Array::borrow(py::handle object, const char* what) {
  const ArrayFacts& facts = facts_of(Py_TYPE(object.ptr()));
  if (facts.masked)
    fail(ErrorKind::unsupported_type, what, " is a masked array, and masks are not sent: pass x.filled(...)");
  tensor_ = facts.tensor, api_ = facts.api;
  dlpack::Tensor tensor;
  bool read_only = facts.immutable;
  const bool direct = facts.numpy && read_numpy(object, tensor, read_only);
  if (read_only) unwritable_ = kReadOnly;
  if (direct) return read(tensor, what);
  if (!facts.api) {
    told_stream_ = stream_told(object, what);
    from_protocol(object, facts, what);
  } else if (facts.api->tensor_from_object(object.ptr(), &tensor)) {
    throw py::error_already_set();
  } else {
    read(tensor, what);
  }
  if (facts.lazy) refuse_lazy(object, dtype_, count_, what);
  if (facts.tensor) refuse_parts_of_bytes(object, dtype_, what);
}

void Array::from_protocol(py::handle object, const ArrayFacts& facts, const char* what) {
  static PyObject* const name = PyUnicode_InternFromString("__dlpack__");
  if (!PyObject_HasAttr(object.ptr(), name))
    fail(ErrorKind::unsupported_type, what,
         " must be an array that speaks DLPack (NumPy, PyTorch, CuPy, JAX, ...), got ", type_name(object),
         PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())
             ? ": all_reduce, reduce, broadcast and all_gather take lists of arrays"
             : "");
  PyObject* const capsule = dlpack_capsule(object, name, told_stream_ != nullptr);
  const py::object owner = py::reinterpret_steal<py::object>(capsule);
  if (!capsule) throw py::error_already_set();
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    auto* given = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
    hold_ = held(given);
    if (given->version.major != 1)
      fail(ErrorKind::unsupported_type, what, " speaks DLPack ", given->version.major, ", gpucomm speaks 1");
    if (given->flags & dlpack::kIsCopied) unwritable_ = kCopied;
    if (given->flags & dlpack::kReadOnly) unwritable_ = kReadOnly;
    read(given->tensor, what);
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    auto* given = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
    PyCapsule_SetName(capsule, "used_dltensor");
    hold_ = held(given);
    if (!facts.immutable && !facts.mutable_) unwritable_ = kUnsaid;
    read(given->tensor, what);
  } else {
    fail(ErrorKind::unsupported_type, what, " (", type_name(object), ") gave no DLPack capsule");
  }
}

void* Array::current_stream() const {
  void* stream = nullptr;
  if (tensor_ && place_.type == dlpack::kCuda && !(api_ && api_->current_work_stream))
    fail(ErrorKind::invalid_argument,
         "this torch does not tell the current stream of its CUDA tensors (2.10 ",
         "and later do): pass stream=, the handle of the stream that they are used on");
  if (!api_) return told_stream_;
  if (api_->current_work_stream && api_->current_work_stream(place_.type, place_.id, &stream))
    throw py::error_already_set();
  return stream;
}

void check_writable(const Array& array, const char* what, const char* advice) {
  if (const char* const why = array.unwritable()) fail(ErrorKind::unsupported_type, what, " ", why, advice);
}

}  // namespace gpucomm
