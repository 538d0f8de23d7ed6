// Memory through which the host reads what a device holds; a call hands it on to the next one: to allocate
// it, or to give it back, may wait for all that the device does.
#pragma once
#include <memory>
#include <mutex>

#include "devices/handles.h"

namespace gpucomm {

class Spare {
  struct Memory {
    OwnMemory there;
    OwnPinned here;  // page-locked: into other memory CUDA's copies block the host
    size_t here_bytes = 0;
  };

 public:
  // What one call has of it.
  class Part {
   public:
    // At least so many bytes of the device's memory and of the host's.
    Part(Spare& spare, const std::shared_ptr<Device>& device, size_t there, size_t here)
        : spare_(spare), memory_(new Memory(spare.take(device, there, here))) {}
    // Without done() the device may still write there: then the memory is given up for good.
    ~Part();
    Part(const Part&) = delete;

    std::byte* there() const { return memory_->there.get(); }
    std::byte* here() const { return memory_->here.get(); }
    // The device does not use it any more.
    void done() { done_ = true; }

   private:
    Spare& spare_;
    std::unique_ptr<Memory> memory_;
    bool done_ = false;
  };

 private:
  Memory take(const std::shared_ptr<Device>& device, size_t there, size_t here);
  void keep(Memory memory);

  std::mutex mutex_;
  Memory kept_;
};

}  // namespace gpucomm
