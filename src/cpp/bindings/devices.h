// The device that an array is on, and how devices are shown to Python.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/array.h"
#include "devices/device.h"

namespace gpucomm {

// Throws unsupported_type for a kind of device that gpucomm does not know, unavailable with the reason where
// CUDA cannot be used.
std::shared_ptr<Device> device_of(const Array& array, const char* what);
// The one whose arrays carry this number; null: it is none, or no longer there.
std::shared_ptr<Device> host_device(int32_t number);

// Of memory, streams and events.
using Address = uintptr_t;
inline std::byte* pointer(Address address) { return reinterpret_cast<std::byte*>(address); }
inline void* handle(Address address) { return reinterpret_cast<void*>(address); }

void bind_work_of_devices(pybind11::class_<Device, std::shared_ptr<Device>>& type);
void bind_host_device(pybind11::module_& m);

}  // namespace gpucomm
