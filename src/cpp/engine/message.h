// One end of a message between two ranks, in host memory or in a device's.
#pragma once
#include <memory>
#include <string>

#include "base/dtype.h"
#include "engine/drivable.h"

namespace gpucomm {

struct Offer;

// Never to oneself.
struct Message : Pending {
  bool sending = false;
  int peer = 0;
  Dtype dtype = Dtype::float32;
  size_t count = 0;
  std::byte* data = nullptr;  // only read when sending
  uint64_t number = 0;        // of its pair and direction, from 1
  uint64_t call = 0;          // of this rank's sends and receives
  SendProgress progress;
  // On a device only a header travels as in host memory; `finished` is first recorded behind what the
  // caller's stream holds, then behind the message. The caller has the stream wait: not before both halves of
  // a sendrecv are enqueued, or one would wait for the other.
  std::shared_ptr<Device> device;  // null: host memory
  bool over_nccl = false;          // ... it travels over NCCL
  bool headed = false;             // the header is through
  std::string note;                // goes with the header
  size_t enqueued = 0;             // bytes
  std::shared_ptr<Offer> offer;    // of threads: what is sent
  size_t bytes() const { return count * size_of(dtype); }
};

}  // namespace gpucomm
