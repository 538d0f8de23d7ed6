// A call on host memory in the course of another one, on the same channel: how ranks settle something before
// they enqueue on their devices, or change their arrays.
#pragma once
#include "engine/execution.h"

namespace gpucomm {

inline Shape side_shape(Collective collective, Dtype dtype, size_t count, const char* algorithm) {
  Shape shape{.collective = collective, .dtype = dtype, .count = count, .segments = 1};
  shape.in_place = collective != Collective::all_to_all, shape.algorithm = algorithm;
  return shape;
}
// Of a call that moves nothing: when it has ended, all ranks have come to it.
inline Shape meeting_shape() { return side_shape(Collective::all_reduce, Dtype::float32, 0, "one_shot"); }

class SideCall {
 public:
  SideCall(const Shape& shape, const std::vector<int>& nodes, int rank)
      : program_(compile(shape, nodes, rank)), scratch_(program_.scratch_bytes) {}
  SideCall(const SideCall&) = delete;

  // The arrays stay until it has ended. Its messages carry the tag of the call `as`, so that a rank which
  // makes another call is found and both are named; else their own.
  void start(Transport& transport, const Arrays& arrays, const CallRecord& as) {
    transport_ = &transport;
    execution_.start(program_, transport, arrays, scratch_.data(), as);
  }
  void start(Transport& transport, const Arrays& arrays, uint64_t sequence) {
    start(transport, arrays, tagged(program_, sequence));
  }
  // Does what can be done now; false if nothing could.
  bool advance() { return !execution_.done() && execution_.advance(); }
  bool ended() { return execution_.done() && transport_->flush(kEverybody); }

 private:
  Program program_;
  std::vector<std::byte> scratch_;
  Execution execution_;
  Transport* transport_ = nullptr;
};

}  // namespace gpucomm
