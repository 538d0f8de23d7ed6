#include "engine/device_norms.h"

#include <utility>

#include "engine/staging.h"

namespace gpucomm {

constexpr size_t kBytes = kNormParts * sizeof(NormSums);

DeviceNorms::DeviceNorms(std::shared_ptr<Device> device, Stream stream) : device_(std::move(device)) {
  state_ = std::make_unique<State>();
  state_->parts = OwnMemory(device_, kBytes);
  state_->finished = make_event(device_);
  state_->found.resize(kNormParts);
  clear(*device_, parts(), kBytes, stream);
}

DeviceNorms::~DeviceNorms() {
  if (!ended_) static_cast<void>(state_.release());
}

void DeviceNorms::read(Stream stream) {
  device_->copy(reinterpret_cast<std::byte*>(state_->found.data()), parts(), kBytes, stream);
  device_->record(state_->finished.get(), stream);
}

NormSums DeviceNorms::total() {
  ended_ = true;
  return total_of(state_->found);
}

}  // namespace gpucomm
