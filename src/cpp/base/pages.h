// What the machine gives memory in: 4 KiB, or 64 KiB as many kernels of ARM machines have it.
#pragma once
#include <unistd.h>

#include <cstddef>

namespace gpucomm {

inline size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
inline size_t page_begin(size_t at) { return at / page_bytes() * page_bytes(); }
inline size_t page_end(size_t at) { return page_begin(at + page_bytes() - 1); }

}  // namespace gpucomm
