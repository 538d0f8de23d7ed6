// The largest magnitude of what a device holds, for codecs that all ranks must agree on it for: by folds,
// each of which leaves a 64th of what it takes, so no kernel of its own. The host reads what is left.
#pragma once
#include <vector>

#include "engine/spare.h"

namespace gpucomm {

class DeviceLargest {
 public:
  struct Span {
    const std::byte* data;
    size_t count;
  };
  // Enqueues it behind what the stream holds.
  DeviceLargest(Spare& spare, std::shared_ptr<Device> device, Dtype dtype, const std::vector<Span>& spans,
                Stream stream);
  const OwnEvent& finished() const { return finished_; }
  // Once finished: of the elements times a factor; NaN where one is.
  double value(double factor);

 private:
  // What the folds leave of a span.
  Span narrow(Op op, Span span, Stream stream) const;

  std::shared_ptr<Device> device_;
  Dtype dtype_;
  Spare::Part memory_;
  std::vector<Span> ends_;  // in it, read by the host
  OwnEvent finished_;
};

}  // namespace gpucomm
