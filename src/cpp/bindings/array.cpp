#include "bindings/array.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

#include "base/error.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

struct TypeFacts {
  dlpack::ExchangeApi* api = nullptr;
  bool immutable = false;  // JAX arrays: DLPack does not mark them read-only
  bool numpy = false;      // numpy.ndarray itself
  bool masked = false;     // NumPy's, whose elements some do not count
  bool tensor = false;     // torch's
  bool lazy = false;       // has views that are conjugated or negated only when they are read
};

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

std::string said(py::handle type, const char* attribute) {
  return py::str(py::getattr(type, attribute, py::str("")));
}

// Of a module of this name, or of a part of it.
bool descends(py::handle type, const char* module, const char* name) {
  for (const py::handle base : type.attr("__mro__"))
    if ((said(base, "__module__") + '.').rfind(concat(module, '.'), 0) == 0 && said(base, "__name__") == name)
      return true;
  return false;
}

TypeFacts facts_about(PyTypeObject* type) {
  TypeFacts facts;
  py::handle object(reinterpret_cast<PyObject*>(type));
  if (py::object api = py::getattr(object, "__dlpack_c_exchange_api__", py::none());
      PyCapsule_CheckExact(api.ptr()))
    facts.api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(api.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  if (facts.api && facts.api->version.major != 1) facts.api = nullptr;
  const std::string module = said(object, "__module__");
  facts.immutable = module.rfind("jax", 0) == 0;
  facts.numpy = module == "numpy" && std::strcmp(type->tp_name, "numpy.ndarray") == 0;
  facts.masked = descends(object, "numpy.ma", "MaskedArray");
  facts.tensor = descends(object, "torch", "Tensor");
  facts.lazy = py::hasattr(object, "is_neg");
  return facts;
}

const TypeFacts& facts_of(PyTypeObject* type) {
  static auto* known =
      new std::unordered_map<PyTypeObject*, TypeFacts>;    // types are kept alive: few, and for good
  static std::pair<PyTypeObject*, const TypeFacts*> last;  // mostly the same again
  if (type == last.first) return *last.second;
  auto found = known->find(type);
  if (found == known->end()) {
    found = known->emplace(type, facts_about(type)).first;
    Py_INCREF(type);
  }
  last = {type, &found->second};
  return found->second;
}

// Of short tables, the usual first: quicker than to hash.
template <class Value, size_t N>
const Value* find(const std::pair<int, Value> (&table)[N], int key) {
  for (const auto& [known, value] : table)
    if (known == key) return &value;
  return nullptr;
}

// By DLPack's code and bits.
constexpr std::pair<int, Dtype> kDtypesByCode[] = {
    {2 << 8 | 32, Dtype::float32},       {2 << 8 | 64, Dtype::float64},    {4 << 8 | 16, Dtype::bfloat16},
    {2 << 8 | 16, Dtype::float16},       {0 << 8 | 64, Dtype::int64},      {0 << 8 | 32, Dtype::int32},
    {0 << 8 | 16, Dtype::int16},         {0 << 8 | 8, Dtype::int8},        {1 << 8 | 8, Dtype::uint8},
    {6 << 8 | 8, Dtype::boolean},        {1 << 8 | 16, Dtype::uint16},     {1 << 8 | 32, Dtype::uint32},
    {1 << 8 | 64, Dtype::uint64},        {5 << 8 | 64, Dtype::complex64},  {5 << 8 | 128, Dtype::complex128},
    {10 << 8 | 8, Dtype::float8_e4m3fn}, {12 << 8 | 8, Dtype::float8_e5m2}};

Dtype dtype_of(dlpack::DataType t, const char* what) {
  const Dtype* const found = find(kDtypesByCode, t.code << 8 | t.bits);
  if (!found || t.lanes != 1)
    fail(ErrorKind::unsupported_type, what, " has a dtype that gpucomm does not know (DLPack code ",
         int(t.code), ", ", int(t.bits), " bits, ", t.lanes, " lanes)");
  return *found;
}

// By NumPy's number of a type.
using Api = py::detail::npy_api;
constexpr int kHalf = 23;
constexpr uint8_t bits(size_t bytes) { return static_cast<uint8_t>(8 * bytes); }
constexpr std::pair<int, dlpack::DataType> kNumpyTypes[] = {
    {Api::NPY_FLOAT_, {2, 32, 1}},
    {Api::NPY_DOUBLE_, {2, 64, 1}},
    {kHalf, {2, 16, 1}},
    {Api::NPY_LONG_, {0, bits(sizeof(long)), 1}},
    {Api::NPY_INT_, {0, bits(sizeof(int)), 1}},
    {Api::NPY_SHORT_, {0, bits(sizeof(short)), 1}},
    {Api::NPY_BYTE_, {0, 8, 1}},
    {Api::NPY_UBYTE_, {1, 8, 1}},
    {Api::NPY_BOOL_, {6, 8, 1}},
    {Api::NPY_USHORT_, {1, bits(sizeof(short)), 1}},
    {Api::NPY_UINT_, {1, bits(sizeof(int)), 1}},
    {Api::NPY_ULONG_, {1, bits(sizeof(long)), 1}},
    {Api::NPY_LONGLONG_, {0, bits(sizeof(long long)), 1}},
    {Api::NPY_ULONGLONG_, {1, bits(sizeof(long long)), 1}},
    {Api::NPY_CFLOAT_, {5, 64, 1}},
    {Api::NPY_CDOUBLE_, {5, 128, 1}}};

// What is usual in NumPy, read where it stands: its DLPack takes longer than a short message does. False:
// not usual.
bool read_numpy(py::handle object, dlpack::Tensor& tensor, bool& read_only) {
  const auto* array = py::detail::array_proxy(object.ptr());
  const auto* descriptor = py::detail::array_descriptor_proxy(array->descr);
  const dlpack::DataType* const type = find(kNumpyTypes, descriptor->type_num);
  if (!type || !(array->flags & Api::NPY_ARRAY_C_CONTIGUOUS_) || descriptor->byteorder == '>') return false;
  static_assert(sizeof(ssize_t) == sizeof(int64_t));
  auto* extents = reinterpret_cast<int64_t*>(array->dimensions);
  tensor = {array->data, {dlpack::kCpu, 0}, array->nd, *type, extents, nullptr, 0};
  read_only = !(array->flags & Api::NPY_ARRAY_WRITEABLE_);
  return true;
}

bool contiguous(const dlpack::Tensor& t) {
  if (!t.strides) return true;
  int64_t expected = 1;
  bool same = true;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] != 1 && t.strides[i] != expected) same = false;
    expected *= t.shape[i];
  }
  return same;
}

bool answers_yes(py::handle object, PyObject* method) {
  PyObject* const answer =
      PyObject_VectorcallMethod(method, &object.ptr(), 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!answer) throw py::error_already_set();
  Py_DECREF(answer);
  return answer == Py_True;
}

// DLPack gives the memory of such views as it is. A real one is an imaginary part, every second number in
// memory, so contiguous only where there is one: others are not asked, which takes as long as a short call.
void refuse_lazy(py::handle object, Dtype dtype, size_t count, const char* what) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  static PyObject* const is_conj = PyUnicode_InternFromString("is_conj");
  const bool complex = dtype == Dtype::complex64 || dtype == Dtype::complex128;
  if (!complex && (count != 1 || !is_float(dtype))) return;
  if (answers_yes(object, is_neg) || (complex && answers_yes(object, is_conj)))
    fail(ErrorKind::unsupported_type, what,
         " is a conjugated or negated view, whose memory holds other values: ",
         "pass x.resolve_conj().resolve_neg()");
}

// "stream" of CUDA's array interface, by which CuPy tells its current one; null: it tells none.
void* stream_told(py::handle object) {
  const py::object interface = py::getattr(object, "__cuda_array_interface__", py::none());
  if (!py::isinstance<py::dict>(interface)) return nullptr;
  const py::object stream = interface.attr("get")("stream");
  return stream.is_none() ? nullptr : reinterpret_cast<void*>(stream.cast<uintptr_t>());
}

}  // namespace

// Of the exception that is set: what is no error, as KeyboardInterrupt, is not ours. Torch has a trace of its
// own functions behind the first line.
[[noreturn]] static void cannot_read(py::handle object, const char* what) {
  py::error_already_set error;
  if (!error.matches(PyExc_Exception)) throw error;
  const std::string said = py::str(error.value());
  fail(ErrorKind::unsupported_type, what, " (", type_name(object),
       ") can not be read: ", said.substr(0, said.find('\n')));
}

// Delegates, so that what DLPack has handed over goes back where the array is refused.
Array::Array(py::handle object, const char* what, bool anywhere) : Array(anywhere) {
  const TypeFacts& facts = facts_of(Py_TYPE(object.ptr()));
  if (facts.masked)
    fail(ErrorKind::unsupported_type, what, " is a masked array, and masks are not sent: pass x.filled(...)");
  read_only_ = facts.immutable, tensor_ = facts.tensor, api_ = facts.api;
  dlpack::Tensor tensor;
  if (facts.numpy && read_numpy(object, tensor, read_only_)) {
    read(tensor, what);
    return;
  }
  if (!facts.api) {
    told_stream_ = stream_told(object);
    from_protocol(object, what);
  } else if (facts.api->tensor_from_object(object.ptr(), &tensor)) {
    cannot_read(object, what);
  } else {
    read(tensor, what);
  }
  if (facts.lazy) refuse_lazy(object, dtype_, count_, what);
}

Array::~Array() {
  if (versioned_ && versioned_->deleter) versioned_->deleter(versioned_);
  if (managed_ && managed_->deleter) managed_->deleter(managed_);
}

// ordered: which stream it is used on is known, so its library, which else has CUDA's default stream wait for
// it, and all that waits for that, is asked for no order. Null, with Python's exception set, where it
// refuses.
static PyObject* dlpack_capsule(py::handle object, PyObject* name, bool ordered) {
  static PyObject* const keywords = py::make_tuple("max_version", "stream").release().ptr();
  static PyObject* const version_only = py::make_tuple("max_version").release().ptr();
  static PyObject* const stream_only = py::make_tuple("stream").release().ptr();
  static PyObject* const version = py::make_tuple(1, 1).release().ptr();
  static PyObject* const no_order = PyLong_FromLong(-1);
  PyObject* arguments[] = {object.ptr(), version, no_order};
  PyObject* capsule = PyObject_VectorcallMethod(name, arguments, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                                ordered ? keywords : version_only);
  if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError)) return capsule;
  PyErr_Clear();  // a producer older than DLPack 1.0
  arguments[1] = no_order;
  return PyObject_VectorcallMethod(name, arguments, 1, ordered ? stream_only : nullptr);
}

void Array::from_protocol(py::handle object, const char* what) {
  static PyObject* const name = PyUnicode_InternFromString("__dlpack__");
  if (!PyObject_HasAttr(object.ptr(), name))
    fail(ErrorKind::unsupported_type, what,
         " must be an array that speaks DLPack (NumPy, PyTorch, CuPy, JAX, ...), got ", type_name(object),
         PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())
             ? ": all_reduce, reduce, broadcast and all_gather take lists of arrays"
             : "");
  PyObject* const capsule = dlpack_capsule(object, name, told_stream_ != nullptr);
  if (!capsule) cannot_read(object, what);
  py::object owner = py::reinterpret_steal<py::object>(capsule);
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    versioned_ = static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
    if (versioned_->version.major != 1)
      fail(ErrorKind::unsupported_type, what, " speaks DLPack ", versioned_->version.major,
           ", gpucomm speaks 1");
    read_only_ = read_only_ || versioned_->flags & dlpack::kReadOnly;
    read(versioned_->tensor, what);
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    managed_ = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
    PyCapsule_SetName(capsule, "used_dltensor");
    read(managed_->tensor, what);
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

void Array::read(const dlpack::Tensor& tensor, const char* what) {
  place_ = tensor.device;
  if (!on_host() && !anywhere_)
    fail(ErrorKind::unsupported_type, what, " is on a device (of DLPack type ", place_.type,
         "); this call takes arrays in host memory only");
  if (!contiguous(tensor))
    fail(ErrorKind::unsupported_type, what, " must be C-contiguous: pass a contiguous copy of it");
  dtype_ = dtype_of(tensor.dtype, what);
  extents_ = tensor.shape, dimensions_ = tensor.ndim;
  for (int i = 0; i < dimensions_; ++i) count_ *= extents_[i];
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (count_ && !tensor.data)
    fail(ErrorKind::unsupported_type, what, " has no memory behind it (a fake or meta tensor)");
  const size_t alignment = std::min(size_of(dtype_), sizeof(uint64_t));
  if (!on_host() && reinterpret_cast<uintptr_t>(data_) % alignment)
    fail(ErrorKind::unsupported_type, what, " begins at an address that is no multiple of ", alignment,
         " bytes, where a device reads no ", name_of(dtype_), ": pass an aligned copy of it");
}

}  // namespace gpucomm
