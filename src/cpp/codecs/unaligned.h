// An element at any address.
#pragma once

namespace gpucomm {

// A struct, for GCC drops such attributes from an alias of a template's parameter, and Clang from any.
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

}  // namespace gpucomm
