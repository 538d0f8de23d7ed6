#include "devices/device.h"

#include "base/error.h"

namespace gpucomm {

std::string Device::shares() { return concat(name(), " shares no memory with other processes"); }
std::byte* Device::allocate_shared(size_t) { fail(ErrorKind::unavailable, shares()); }
std::string Device::export_memory(const std::byte*) { fail(ErrorKind::unavailable, shares()); }
std::byte* Device::open_memory(const std::string&) { fail(ErrorKind::unavailable, shares()); }
void Device::close_memory(std::byte*) noexcept {}
Event Device::make_shared_event() { fail(ErrorKind::unavailable, shares()); }
std::string Device::export_event(Event) { fail(ErrorKind::unavailable, shares()); }
Event Device::open_event(const std::string&) { fail(ErrorKind::unavailable, shares()); }

}  // namespace gpucomm
