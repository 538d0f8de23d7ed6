// A caller's array as a span: borrowed through DLPack, never copied.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>
#include <span>

#include "base/dlpack.h"
#include "base/dtype.h"

namespace gpucomm {

struct ArrayFacts;

// What keeps an array's memory; given back with the GIL held.
using Hold = std::shared_ptr<void>;

class Array {
 public:
  // Throws unsupported_type, in a sentence with `what` ("x", "out"), for what is no array, not on the CPU,
  // not C-contiguous, or of a dtype that is unknown.
  // `anywhere`: arrays on devices too.
  Array(pybind11::handle object, const char* what, bool anywhere = false);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  std::byte* data() const { return data_; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * size_of(dtype_); }
  Dtype dtype() const { return dtype_; }
  // Why it cannot be written, behind its name in a sentence; null: it can.
  const char* unwritable() const { return unwritable_; }
  bool tensor() const { return tensor_; }  // torch's
  // Where it is, as DLPack numbers devices.
  dlpack::Device place() const { return place_; }
  bool on_host() const { return place_.type == dlpack::kCpu || place_.type == dlpack::kCudaHost; }
  bool same_memory(const Array& other) const {
    if (on_host() || other.on_host()) return on_host() == other.on_host();
    return place_.type == other.place_.type && place_.id == other.place_.id;
  }
  // The stream that its library works on now; null where that does not tell: the device's default stream.
  // Throws invalid_argument for torch's before 2.10, which work on another one and do not tell.
  void* current_stream() const;
  // For longer than this is there. Null: the object that has lent it keeps its memory, as NumPy's and
  // torch's.
  const Hold& hold() const { return hold_; }
  // As long as the array is as it was.
  std::span<const int64_t> shape() const { return {extents_, static_cast<size_t>(dimensions_)}; }
  bool overlaps(const Array& other) const {
    return bytes() && other.bytes() && data_ < other.data_ + other.bytes() && other.data_ < data_ + bytes();
  }

 private:
  explicit Array(bool anywhere) : anywhere_(anywhere) {}
  void borrow(pybind11::handle object, const char* what);
  void from_protocol(pybind11::handle object, const ArrayFacts& facts, const char* what);
  void read(const dlpack::Tensor& tensor, const char* what);
  void measure(const dlpack::Tensor& tensor, const char* what);
  const bool anywhere_;
  dlpack::ExchangeApi* api_ = nullptr;

  Hold hold_;
  std::byte* data_ = nullptr;
  size_t count_ = 1;
  Dtype dtype_ = Dtype::float32;
  const char* unwritable_ = nullptr;
  bool tensor_ = false;
  void* told_stream_ = nullptr;  // by CUDA's array interface, of an array without the exchange table
  dlpack::Device place_{dlpack::kCpu, 0};
  const int64_t* extents_ = nullptr;  // the array's own
  int dimensions_ = 0;
};

// Throws unsupported_type, in a sentence with `what` that ends in `advice`, for an array that cannot be
// written.
void check_writable(const Array& array, const char* what, const char* advice = "");

}  // namespace gpucomm
