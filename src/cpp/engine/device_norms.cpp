#include "engine/device_norms.h"

#include <utility>

#include "engine/staging.h"

namespace gpucomm {

constexpr size_t kBytes = kNormParts * sizeof(NormSums);

DeviceNorms::DeviceNorms(std::shared_ptr<Device> device, Stream stream)
    : device_(std::move(device)),
      finished_(make_event(device_)),
      found_(std::make_unique<std::vector<NormSums>>(kNormParts)),
      parts_(device_->allocate(kBytes)) {
  clear(*device_, parts_, kBytes, stream);
}

DeviceNorms::~DeviceNorms() {
  if (ended_)
    device_->release(parts_);
  else
    static_cast<void>(found_.release());
}

void DeviceNorms::read(Stream stream) {
  device_->copy(reinterpret_cast<std::byte*>(found_->data()), parts_, kBytes, stream);
  device_->record(finished_.get(), stream);
}

NormSums DeviceNorms::total() {
  ended_ = true;
  return total_of(*found_);
}

}  // namespace gpucomm
