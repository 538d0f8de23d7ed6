// The device that an array is on.
#pragma once
#include <memory>

#include "bindings/array.h"
#include "devices/device.h"

namespace gpucomm {

// Throws unsupported_type for a kind of device that gpucomm does not know, unavailable with the reason where
// CUDA cannot be used.
std::shared_ptr<Device> device_of(const Array& array, const char* what);

}  // namespace gpucomm
