#include "bindings/array_facts.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

// DLPack before 1.0 does not say whether an array may be written. Of these it is known.
constexpr std::string_view kMutable[] = {
    "numpy", "torch", "cupy",  "cupyx",    "paddle",  "array_api_strict", "gpucomm", "dpctl",
    "dpnp",  "warp",  "mxnet", "nanobind", "oneflow", "mindspore",        "tvm",     "tvm_ffi"};
constexpr std::string_view kImmutable[] = {"jax", "jaxlib"};

std::string said(py::handle type, const char* attribute) {
  const py::object text = py::getattr(type, attribute, py::none());
  return py::isinstance<py::str>(text) ? text.cast<std::string>() : "";  // anybody may have set it
}

// Of a module of this name, or of a part of it.
bool descends(py::handle type, const char* module, const char* name) {
  for (const py::handle base : type.attr("__mro__"))
    if ((said(base, "__module__") + '.').rfind(concat(module, '.'), 0) == 0 && said(base, "__name__") == name)
      return true;
  return false;
}

// It or a class that it derives from.
template <size_t N>
bool is_of(const std::string_view (&libraries)[N], py::handle type) {
  for (const py::handle base : type.attr("__mro__")) {
    const std::string module = said(base, "__module__"), library = module.substr(0, module.find('.'));
    if (std::find(libraries, libraries + N, library) != libraries + N) return true;
  }
  return false;
}

ArrayFacts facts_about(PyTypeObject* type) {
  ArrayFacts facts;
  py::handle object(reinterpret_cast<PyObject*>(type));
  if (py::object api = py::getattr(object, "__dlpack_c_exchange_api__", py::none());
      PyCapsule_IsValid(api.ptr(), "dlpack_exchange_api"))
    facts.api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(api.ptr(), "dlpack_exchange_api"));
  const bool usable = facts.api && facts.api->version.major == 1 && facts.api->tensor_from_object;
  if (!usable) facts.api = nullptr;
  facts.immutable = is_of(kImmutable, object);
  facts.mutable_ = is_of(kMutable, object);
  facts.numpy = said(object, "__module__") == "numpy" && std::strcmp(type->tp_name, "numpy.ndarray") == 0;
  facts.masked = descends(object, "numpy.ma", "MaskedArray");
  facts.tensor = descends(object, "torch", "Tensor");
  facts.lazy = py::hasattr(object, "is_neg");
  return facts;
}

std::unordered_map<PyTypeObject*, ArrayFacts>& known_facts() {
  static auto* all = new std::unordered_map<PyTypeObject*, ArrayFacts>;  // classes outlive static objects
  return *all;
}

PyTypeObject* last_type;  // mostly the same again
const ArrayFacts* last_facts;

// Another class may come to be at the same address.
void forget_with(PyTypeObject* type) {
  const auto forget = [type](py::handle reference) {
    known_facts().erase(type);
    last_type = nullptr;
    reference.dec_ref();
  };
  py::weakref(reinterpret_cast<PyObject*>(type), py::cpp_function(forget)).release();
}

}  // namespace

const ArrayFacts& facts_of(PyTypeObject* type) {
  if (type == last_type) return *last_facts;
  auto found = known_facts().find(type);
  if (found == known_facts().end()) {
    const ArrayFacts facts = facts_about(type);
    forget_with(type);
    found = known_facts().insert_or_assign(type, facts).first;
  }
  last_type = type, last_facts = &found->second;
  return found->second;
}

}  // namespace gpucomm
