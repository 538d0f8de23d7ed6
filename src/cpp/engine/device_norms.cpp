#include "engine/device_norms.h"

#include <utility>

#include "engine/staging.h"

namespace gpucomm {

constexpr size_t kBytes = kNormParts * sizeof(NormSums);

DeviceNorms::DeviceNorms(std::shared_ptr<Device> device, Stream stream)
    : device_(std::move(device)),
      finished_(make_event(device_)),
      memory_(new Memory{{device_, kBytes}, {device_, device_->allocate_pinned(kBytes)}}) {
  clear(*device_, parts(), kBytes, stream);
}

DeviceNorms::~DeviceNorms() {
  if (!ended_) static_cast<void>(memory_.release());
}

void DeviceNorms::read(Stream stream) {
  device_->copy(memory_->found.get(), parts(), kBytes, stream);
  device_->record(finished_.get(), stream);
}

NormSums DeviceNorms::total() {
  ended_ = true;
  const auto* found = reinterpret_cast<const NormSums*>(memory_->found.get());
  return total_of({found, found + kNormParts});
}

}  // namespace gpucomm
