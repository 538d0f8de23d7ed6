#include "engine/device_norms.h"

#include <utility>

#include "engine/staging.h"

namespace gpucomm {

constexpr size_t kBytes = kNormParts * sizeof(NormSums);

DeviceNorms::DeviceNorms(Spare& spare, std::shared_ptr<Device> device, Stream stream)
    : spare_(spare),
      device_(std::move(device)),
      finished_(make_event(device_)),
      memory_(new Spare::Memory(spare.take(device_, kBytes, kBytes))) {
  clear(*device_, parts(), kBytes, stream);
}

DeviceNorms::~DeviceNorms() {
  if (ended_)
    spare_.keep(std::move(*memory_));
  else
    static_cast<void>(memory_.release());
}

void DeviceNorms::read(Stream stream) {
  device_->copy(memory_->here.get(), parts(), kBytes, stream);
  device_->record(finished_.get(), stream);
}

NormSums DeviceNorms::total() {
  ended_ = true;
  const auto* found = reinterpret_cast<const NormSums*>(memory_->here.get());
  return total_of({found, found + kNormParts});
}

}  // namespace gpucomm
