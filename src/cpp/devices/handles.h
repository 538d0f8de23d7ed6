// Streams, events and memory of a device that end with who holds them.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "devices/device.h"

namespace gpucomm {

template <class Handle, void (Device::*kEnd)(Handle) noexcept>
class Own {
 public:
  Own() = default;
  Own(std::shared_ptr<Device> device, Handle handle) : device_(std::move(device)), handle_(handle) {}
  Own(Own&& other) noexcept
      : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Own& operator=(Own&& other) noexcept {
    std::swap(device_, other.device_), std::swap(handle_, other.handle_);
    return *this;
  }
  ~Own() {
    if (device_) ((*device_).*kEnd)(handle_);
  }
  Handle get() const { return handle_; }
  const std::shared_ptr<Device>& device() const { return device_; }
  explicit operator bool() const { return device_ != nullptr; }

 private:
  std::shared_ptr<Device> device_;
  Handle handle_{};
};

// Streams and events are both void*: told apart by what ends them.
using OwnStream = Own<Stream, &Device::end_stream>;
using OwnEvent = Own<Event, &Device::end_event>;
using OwnShared = Own<std::byte*, &Device::release>;          // memory that others open
using OwnPinned = Own<std::byte*, &Device::release_pinned>;   // of the host
using OpenedMemory = Own<std::byte*, &Device::close_memory>;  // of others

// Memory remembers its size.
class OwnMemory {
 public:
  OwnMemory() = default;
  OwnMemory(std::shared_ptr<Device> device, size_t bytes)
      : memory_(device, device->allocate(bytes)), bytes_(bytes) {}
  std::byte* get() const { return memory_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  Own<std::byte*, &Device::release> memory_;
  size_t bytes_ = 0;
};

inline OwnStream make_stream(const std::shared_ptr<Device>& device) {
  return {device, device->make_stream()};
}
inline OwnEvent make_event(const std::shared_ptr<Device>& device) { return {device, device->make_event()}; }

// Events that are recorded again once nobody holds them any more: a new one takes several times as long.
class Events {
 public:
  std::shared_ptr<OwnEvent> take(const std::shared_ptr<Device>& device) {
    constexpr size_t kMost = 64;
    next_ = next_ + 1 < all_.size() ? next_ + 1 : 0;
    if (!all_.empty() && all_[next_].use_count() == 1 && all_[next_]->device() == device) return all_[next_];
    auto event = std::make_shared<OwnEvent>(make_event(device));
    if (all_.size() < kMost)
      all_.push_back(event);
    else
      all_[next_] = event;
    return event;
  }

 private:
  std::vector<std::shared_ptr<OwnEvent>> all_;
  size_t next_ = 0;  // the one that was taken last
};

}  // namespace gpucomm
