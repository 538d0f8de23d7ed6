// Memory through which the host reads what a device holds; a call hands it on to the next one: to allocate
// it, or to give it back, may wait for all that the device does.
#pragma once
#include <memory>
#include <mutex>

#include "devices/handles.h"

namespace gpucomm {

class Spare {
 public:
  struct Memory {
    OwnMemory there;  // the device's
    OwnPinned here;   // the host's: else CUDA's copy would block the host
    size_t here_bytes = 0;
  };
  // At least so many bytes; none of what another call has.
  Memory take(const std::shared_ptr<Device>& device, size_t there, size_t here);
  // What the device does not use any more.
  void keep(Memory memory);

 private:
  std::mutex mutex_;
  Memory kept_;
};

}  // namespace gpucomm
