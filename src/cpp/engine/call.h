// One call of a collective: its shape, which is cached, and its arrays.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "codecs/codec.h"
#include "plans/plan.h"

namespace gpucomm {

// What a call is for: the application's, a barrier, or an agreement on measured times.
enum class Purpose : uint8_t { call, barrier, agreement };

struct Shape {
  Collective collective = Collective::all_reduce;
  Op op = Op::sum;
  Dtype dtype = Dtype::float32;
  size_t count = 0;  // elements of the whole message (all chunks)
  int root = 0;
  bool in_place = true;
  int segments = 0;  // 0: chosen
  Purpose purpose = Purpose::call;
  std::string algorithm;  // "auto": chosen
  // Elements of each rank's chunk; empty: all alike. Of all_to_all: those sent to and received from each
  // rank, of which the others know only their own part; both are given or none.
  std::vector<size_t> counts, out_counts;
  std::shared_ptr<const Codec> codec;  // null: elements travel as they are
  uint64_t pack = 0;  // a digest of the arrays that are packed into this message; 0: one array
  bool operator==(const Shape&) const = default;
};

// What uneven counts and packs add to a key of shapes.
inline std::string key_of_counts(const Shape& shape) {
  std::string key = shape.pack ? ' ' + std::to_string(shape.pack) : "";
  for (const auto* counts : {&shape.counts, &shape.out_counts})
    for (size_t n : *counts) key += ' ' + std::to_string(n);
  return key;
}

struct Arrays {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // null where this rank gets no result
};

}  // namespace gpucomm
