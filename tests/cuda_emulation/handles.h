// What the emulation's processes tell each other is the host device's text.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

namespace emulated {

template <class Handle>
void write(Handle* handle, const std::string& text) {
  static_assert(sizeof(Handle) == 64);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, text.data(), std::min(text.size(), sizeof *handle - 1));
}

// A process cannot open what it has made itself. The text begins with who did.
template <class Handle>
bool own_handle(const Handle& handle) {
  return std::atoll(handle.reserved) == getpid();
}

}  // namespace emulated
