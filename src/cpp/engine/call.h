// One call of a collective: its shape, which is cached, and its arrays.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "codecs/codec.h"
#include "devices/handles.h"
#include "plans/plan.h"
#include "transports/transport.h"

namespace gpucomm {

// What a call is for: the application's, a barrier, an agreement, on measured times or on how arrays of
// devices travel, what the ranks measure or agree on before one of the application's, or a part of one that
// is made of several.
enum class Purpose : uint8_t {
  call,
  barrier,
  agreement,
  way,
  preparation,
  split,  // or subset: the ranks tell each other which
  broadcast_object,
  gather_objects,
  max_rel_err
};
// The names of the last ones, from the first of them on.
inline constexpr Purpose kFirstComposed = Purpose::split;
inline constexpr std::string_view kComposed[] = {"split/subset", "broadcast_object", "gather_objects",
                                                 "max_rel_err"};

// How ranks make calls on devices: as threads of one process, through arenas that processes of one machine
// open, over NCCL, or through memory of the hosts.
enum class DeviceWay { threads, arenas, nccl, staged };

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
  std::shared_ptr<const Codec> asked;  // what "auto" was given, and may not take
  bool tells_error = false;            // arrays have an `error`
  bool on_device = false;              // arrays are in a device's memory: the call is enqueued on streams
  DeviceWay way = DeviceWay::threads;  // ... and travel so
  PrivateWay private_way = PrivateWay::rule;
  size_t part_of = 0;  // elements of the call that this is a part of, as others are; 0: of none
  uint64_t pack = 0;  // a digest of the arrays that are packed into this message, or of the counts of part_of
  std::shared_ptr<const Shape> before;  // of a preparation: the application's call
  bool operator==(const Shape&) const = default;
};

// The largest of all ranks' `count` numbers, float64: how they agree on figures.
inline Shape largest_of(size_t count, Purpose purpose = Purpose::call) {
  Shape shape{.op = Op::max, .dtype = Dtype::float64, .count = count, .segments = 1, .purpose = purpose};
  shape.algorithm = "one_shot";
  return shape;
}

// Whether coded pieces of this call are added as they are.
inline bool adds_coded(const Shape& shape) { return shape.codec && shape.codec->traits().additive; }

// What uneven counts and packs add to a key of shapes.
inline std::string key_of_counts(const Shape& shape) {
  std::string key = shape.pack ? ' ' + std::to_string(shape.pack) : "";
  if (shape.part_of) key += " of " + std::to_string(shape.part_of);
  for (const auto* counts : {&shape.counts, &shape.out_counts})
    for (size_t n : *counts) key += ' ' + std::to_string(n);
  return key;
}

// As CallRecord says it.
inline uint16_t place_of(const Shape& shape) {
  if (!shape.on_device) return 0;
  return shape.way == DeviceWay::nccl ? 2 : shape.way == DeviceWay::staged ? 3 : 1;
}

struct Staging;

struct Arrays {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // null where this rank gets no result
  // As long as the whole message, or null: what this rank's encodings lose. Zeros where it encodes nothing.
  std::byte* error = nullptr;
  double* lost_sq = nullptr;        // the same, as a sum of squares to add to
  std::byte* lost_parts = nullptr;  // of a device: where Device::add_squares adds it
  // Null: host memory. Else who calls may reuse or read the arrays behind what `stream` holds after the call.
  std::shared_ptr<Device> device;
  Stream stream = nullptr;
  uint64_t capture = 0;  // Device::capture_of the stream, at the call
  // Behind what the stream held at an asynchronous call, which begins late: it may hold more by then, or be
  // gone. Null: what it holds when the call begins.
  std::shared_ptr<OwnEvent> came;
  bool stream_waits = true;                // else the rank lets it wait later
  std::shared_ptr<const Staging> staging;  // null: the arrays travel as they are
  // What the input is multiplied by first: in place once all ranks have made this very call, else in_parts().
  std::optional<double> factor;
};

}  // namespace gpucomm
