// What DLPack says of an array, checked: any producer may have filled it in.
#include <algorithm>

#include "base/error.h"
#include "bindings/array.h"
#include "bindings/find.h"

namespace gpucomm {
namespace {

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
         int(t.code), ", ", int(t.bits), " bits, ", t.lanes, " lanes): a view of it as uint8 can be moved");
  return *found;
}

// Of an array with elements.
bool contiguous(const dlpack::Tensor& t) {
  if (!t.strides) return true;
  int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

}  // namespace

// Counts the elements, by a shape that any producer may have given.
void Array::measure(const dlpack::Tensor& tensor, const char* what) {
  constexpr int64_t kMost = int64_t{1} << 50;  // so that those of all ranks can be counted too
  extents_ = tensor.shape, dimensions_ = tensor.ndim;
  if (dimensions_ < 0 || (dimensions_ && !extents_))
    fail(ErrorKind::unsupported_type, what, " has no shape: its library says that it has ", dimensions_,
         " dimensions", dimensions_ < 0 ? "" : ", and no extents");
  auto bytes =
      static_cast<int64_t>(size_of(dtype_));  // as if no extent were 0: rows are multiplied by themselves too
  for (int i = 0; i < dimensions_; ++i) {
    if (extents_[i] < 0)
      fail(ErrorKind::unsupported_type, what, " has the negative extent ", extents_[i], " in dimension ", i);
    count_ *= extents_[i];
    if (extents_[i] && (__builtin_mul_overflow(bytes, extents_[i], &bytes) || bytes > kMost))
      fail(ErrorKind::unsupported_type, what, " has a shape of more bytes than any memory holds");
  }
}

void Array::read(const dlpack::Tensor& tensor, const char* what) {
  place_ = tensor.device;
  if (!on_host() && !anywhere_)
    fail(ErrorKind::unsupported_type, what, " is on a device (of DLPack type ", place_.type,
         "); this call takes arrays in host memory only");
  dtype_ = dtype_of(tensor.dtype, what);
  measure(tensor, what);
  if (count_ && !contiguous(tensor))
    fail(ErrorKind::unsupported_type, what, " must be C-contiguous: pass a contiguous copy of it");
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (count_ && !tensor.data)
    fail(ErrorKind::unsupported_type, what, " has no memory behind it (a fake or meta tensor)");
  if (!count_ && !on_host()) data_ = nullptr;  // it may lie behind the last of what is allocated
  const size_t alignment = std::min(size_of(dtype_), sizeof(uint64_t));
  if (!on_host() && reinterpret_cast<uintptr_t>(data_) % alignment)
    fail(ErrorKind::unsupported_type, what, " begins at an address that is no multiple of ", alignment,
         " bytes, where a device reads no ", name_of(dtype_), ": pass an aligned copy of it");
}

}  // namespace gpucomm
