#include "engine/device_norms.h"

#include <utility>

#include "engine/staging.h"

namespace gpucomm {

constexpr size_t kBytes = kNormParts * sizeof(NormSums);

DeviceNorms::DeviceNorms(Spare& spare, std::shared_ptr<Device> device, Stream stream)
    : device_(std::move(device)), finished_(make_event(device_)), memory_(spare, device_, kBytes, kBytes) {
  clear(*device_, parts(), kBytes, stream);
}

void DeviceNorms::read(Stream stream) {
  device_->copy(memory_.here(), parts(), kBytes, stream);
  device_->record(finished_.get(), stream);
}

NormSums DeviceNorms::total() {
  memory_.done();
  const auto* found = reinterpret_cast<const NormSums*>(memory_.here());
  return total_of({found, found + kNormParts});
}

}  // namespace gpucomm
