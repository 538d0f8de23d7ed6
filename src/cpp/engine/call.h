// One call of a collective: its shape, which is cached, and its arrays.
#pragma once
#include <cstddef>
#include <string>

#include "base/dtype.h"
#include "plans/plan.h"

namespace gpucomm {

struct Shape {
  Collective collective = Collective::all_reduce;
  Op op = Op::sum;
  Dtype dtype = Dtype::float32;
  size_t count = 0;  // elements of the whole message (all chunks)
  int root = 0;
  bool in_place = true;
  int segments = 0;       // 0: chosen
  bool barrier = false;   // an all_reduce of nothing, by name
  std::string algorithm;  // "auto": chosen
  bool operator==(const Shape&) const = default;
};

struct Arrays {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // null where this rank gets no result
};

}  // namespace gpucomm
