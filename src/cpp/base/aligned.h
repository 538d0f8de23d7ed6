// Numbers and memory on a border.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>

namespace gpucomm {

// The next multiple of `unit`.
constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<std::byte[], Free>;

// On a multiple of `unit`, as `bytes` must be; empty: there is none.
inline Aligned allocate_aligned(size_t unit, size_t bytes) {
  return Aligned(static_cast<std::byte*>(std::aligned_alloc(unit, bytes)));
}

}  // namespace gpucomm
