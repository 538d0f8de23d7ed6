#include "engine/spare.h"

#include <algorithm>
#include <utility>

namespace gpucomm {

constexpr size_t kLeast = 64 << 10;
constexpr size_t kMost = 16 << 20;  // of the device's: a communicator keeps no more, whatever its messages

Spare::Memory Spare::take(const std::shared_ptr<Device>& device, size_t there, size_t here) {
  Memory kept = [&] {
    std::lock_guard lock(mutex_);
    return std::exchange(kept_, {});
  }();
  if (kept.here.device() == device && there <= kept.there.bytes() && here <= kept.here_bytes) return kept;
  // grows in both: else calls in turn of which each needs more of one would allocate for ever
  there = std::max({there, kept.there.bytes(), kLeast}), here = std::max({here, kept.here_bytes, kLeast});
  return {{device, there}, {device, device->allocate_pinned(here)}, here};
}

Spare::Part::~Part() {
  if (done_)
    spare_.keep(std::move(*memory_));
  else
    static_cast<void>(memory_.release());
}

void Spare::keep(Memory memory) {
  if (memory.there.bytes() > kMost) return;
  std::lock_guard lock(mutex_);
  std::swap(kept_, memory);
}

}  // namespace gpucomm
