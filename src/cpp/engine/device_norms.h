// Sums of squares of what a device holds, for the host: the device leaves them in parts, which are copied to
// the host when all is added, and the host adds these up.
#pragma once
#include <memory>

#include "engine/spare.h"

namespace gpucomm {

class DeviceNorms {
 public:
  // Enqueues that they are zeros, behind what the stream holds.
  DeviceNorms(Spare& spare, std::shared_ptr<Device> device, Stream stream);

  // Where Device::add_squares adds, behind the zeros.
  std::byte* parts() const { return memory_.there(); }
  // Enqueues the copy. The host waits for finished() before it asks for the total.
  void read(Stream stream);
  const OwnEvent& finished() const { return finished_; }
  NormSums total();

 private:
  std::shared_ptr<Device> device_;
  OwnEvent finished_;
  Spare::Part memory_;
};

}  // namespace gpucomm
