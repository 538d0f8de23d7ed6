#include "bindings/array_numpy.h"

#include <pybind11/numpy.h>

#include <string>
#include <string_view>

#include "bindings/find.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

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

// Of the package ml_dtypes, as JAX has them: NumPy, whose numbers they get when they are imported, does not
// give them to DLPack.
constexpr int kFirstOfUsers = 256;
constexpr std::pair<std::string_view, dlpack::DataType> kMlTypes[] = {
    {"bfloat16", {4, 16, 1}}, {"float8_e4m3fn", {10, 8, 1}}, {"float8_e5m2", {12, 8, 1}}};

const dlpack::DataType* type_of(py::handle descriptor, int number) {
  if (number < kFirstOfUsers) return find(kNumpyTypes, number);
  const py::object scalar = descriptor.attr("type");
  if (!py::str("ml_dtypes").equal(py::getattr(scalar, "__module__", py::none()))) return nullptr;
  return find(kMlTypes, std::string_view(py::cast<std::string>(scalar.attr("__name__"))));
}

}  // namespace

bool read_numpy(py::handle object, dlpack::Tensor& tensor, bool& read_only) {
  const auto* array = py::detail::array_proxy(object.ptr());
  const auto* descriptor = py::detail::array_descriptor_proxy(array->descr);
  const dlpack::DataType* const type = type_of(array->descr, descriptor->type_num);
  if (!type || !(array->flags & Api::NPY_ARRAY_C_CONTIGUOUS_) || descriptor->byteorder == '>') return false;
  static_assert(sizeof(ssize_t) == sizeof(int64_t));
  auto* extents = reinterpret_cast<int64_t*>(array->dimensions);
  tensor = {array->data, {dlpack::kCpu, 0}, array->nd, *type, extents, nullptr, 0};
  read_only = !(array->flags & Api::NPY_ARRAY_WRITEABLE_);
  return true;
}

}  // namespace gpucomm
