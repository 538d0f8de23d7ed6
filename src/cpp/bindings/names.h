// Text among arguments, and enumerations by name, with a sentence for an unknown one.
#pragma once
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"

namespace gpucomm {

using Text = std::string_view;  // an argument, as long as the call

template <class Enum, size_t N>
Enum parse(const char* what, std::string_view name, const std::string_view (&names)[N]) {
  for (size_t i = 0; i < N; ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  std::string known;
  for (auto n : names) known += (known.empty() ? "" : ", ") + std::string(n);
  fail(ErrorKind::invalid_argument, "unknown ", what, " '", name, "'; known: ", known);
}

inline Op parse_op(std::string_view name) { return parse<Op>("op", name, kOpNames); }

inline Dtype parse_dtype(std::string_view name) {
  for (int i = 0; i < kDtypes; ++i)
    if (kDtypeInfo[i].name == name) return static_cast<Dtype>(i);
  fail(ErrorKind::invalid_argument, "unknown dtype '", name, "'");
}

}  // namespace gpucomm
