// What a rank tells others of its device's memory: numbers and texts, one behind the other, in words that
// they all see.
#pragma once
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "devices/device.h"
#include "transports/transport.h"

namespace gpucomm {

// "cuda" of "cuda:0".
inline std::string kind_of(const Device& device) { return device.name().substr(0, device.name().find(':')); }

class HandleText {
 public:
  void put(uint64_t number) { text_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void put(const std::string& text) {
    put(text.size());
    text_ += text;
  }
  void tell(DeviceWords::Pair& pair) const {
    GPUCOMM_CHECK(text_.size() <= kMostHandleBytes);
    std::memcpy(pair.handles, text_.data(), text_.size());
    pair.handle_bytes.store(text_.size(), std::memory_order_release);
  }

 private:
  std::string text_;
};

// Empty: nothing was told yet.
inline std::string told_handles(const DeviceWords::Pair& pair) {
  return {pair.handles, pair.handle_bytes.load(std::memory_order_acquire)};
}

class HandleReader {
 public:
  explicit HandleReader(std::string text) : text_(std::move(text)) {}
  uint64_t number() {
    GPUCOMM_CHECK(at_ + sizeof(uint64_t) <= text_.size());
    uint64_t value;
    std::memcpy(&value, text_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const uint64_t size = number();
    GPUCOMM_CHECK(size <= text_.size() - at_);
    at_ += size;
    return text_.substr(at_ - size, size);
  }

 private:
  std::string text_;
  size_t at_ = 0;
};

}  // namespace gpucomm
