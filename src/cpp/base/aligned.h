// Memory on a border.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>

namespace gpucomm {

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<std::byte[], Free>;

// On a multiple of `unit`, as `bytes` must be; empty: there is none.
inline Aligned allocate_aligned(size_t unit, size_t bytes) {
  return Aligned(static_cast<std::byte*>(std::aligned_alloc(unit, bytes)));
}

}  // namespace gpucomm
