#include "devices/host_device.h"

#include <algorithm>
#include <cstdlib>

#include "base/aligned.h"
#include "base/error.h"
#include "devices/host_event.h"
#include "devices/host_stream.h"
#include "devices/shared_memory.h"

namespace gpucomm {

namespace {

// What an event's handle points to.
struct OwnedEvent {
  HostDevice& device;
  std::shared_ptr<HostEvent> event;
};

OwnedEvent& owned(Event event) { return *static_cast<OwnedEvent*>(event); }

}  // namespace

HostDevice::HostDevice(std::chrono::microseconds deferred, bool shares, bool opens)
    : deferred_(deferred),
      shares_(shares),
      opens_(opens),
      retired_(std::make_unique<RetiredStreams>()),
      default_stream_(std::make_unique<HostStream>(this, deferred)) {}
HostDevice::~HostDevice() = default;

void HostDevice::reach(const Device& other) {
  if (!dynamic_cast<const HostDevice*>(&other))
    fail(ErrorKind::unavailable, name(), " cannot use the memory of ", other.name());
}

std::byte* HostDevice::allocate(size_t bytes) {
  count("allocate");
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(kDeviceAlign, std::max(kDeviceAlign, round_up(bytes, kDeviceAlign))));
  if (!memory) fail(ErrorKind::unavailable, "no memory for ", bytes, " bytes on the host device");
  return memory;
}

void HostDevice::release(std::byte* memory) noexcept {
  std::unique_lock lock(mutex_);
  if (shared_.erase(memory)) return;
  lock.unlock();
  std::free(memory);
}

Stream HostDevice::make_stream() { return new HostStream(this, deferred_); }
void HostDevice::end_stream(Stream stream) noexcept {
  captures_.forget(stream);
  retired_->add(std::unique_ptr<HostStream>(static_cast<HostStream*>(stream)));
}
Event HostDevice::make_event() { return new OwnedEvent{*this, std::make_shared<HostEvent>()}; }
void HostDevice::end_event(Event event) noexcept {
  captures_.forget(event);
  delete &owned(event);
}

std::byte* HostDevice::allocate_shared(size_t bytes) {
  SharedMemory memory(bytes);
  std::byte* const data = memory.data();
  std::lock_guard lock(mutex_);
  shared_.emplace(data, std::move(memory));
  return data;
}
std::byte* HostDevice::open_memory(const std::string& handle) {
  if (!opens_) fail(ErrorKind::unavailable, name(), " cannot open memory of other processes");
  SharedMemory memory(handle);
  std::byte* const data = memory.data();
  std::lock_guard lock(mutex_);
  shared_.emplace(data, std::move(memory));
  return data;
}
std::string HostDevice::export_memory(const std::byte* memory) {
  std::lock_guard lock(mutex_);
  return shared_.at(memory).handle();
}
Device::Probe HostDevice::probe() {
  std::lock_guard lock(probe_mutex_);
  if (!probe_) {
    probe_event_ = HostEvent::make_shared();
    probe_ = {export_memory(allocate_shared(64)), probe_event_->handle()};
  }
  return *probe_;
}
Event HostDevice::make_shared_event() { return new OwnedEvent{*this, HostEvent::make_shared()}; }
std::string HostDevice::export_event(Event event) { return owned(event).event->handle(); }
Event HostDevice::open_event(const std::string& handle) {
  return new OwnedEvent{*this, std::make_shared<HostEvent>(handle)};
}

bool HostDevice::done(Event event) {
  count("done");
  captures_.check(event);
  return owned(event).event->latest().done();
}

HostStream& HostDevice::stream_of(Stream stream) {
  HostStream& found = stream ? *static_cast<HostStream*>(stream) : *default_stream_;
  if (found.owner != this) fail(ErrorKind::invalid_argument, "the stream is one of another host device");
  return found;
}

uint64_t HostDevice::capture_of(Stream stream) {
  stream_of(stream);
  const HostCaptures::State state = captures_.of(stream);
  if (state.failed)
    fail(ErrorKind::invalid_argument, name(),
         ": the stream is being captured into a graph, and the capture has failed: end it");
  return state.id;
}

void HostDevice::record(Event event, Stream stream) {
  count("record");
  if (&owned(event).device != this)
    fail(ErrorKind::unavailable,
         "the event is one of another host device: only its own streams can record it");
  if (captures_.record(event, stream)) return;
  stream_of(stream).add([mark = owned(event).event->record()] { mark.reach(); });
}

void HostDevice::wait(Stream stream, Event event) {
  count("wait");
  if (HostDevice& other = owned(event).device; &other != this) other.captures_.check(event);
  if (captures_.wait(stream, event)) return;
  stream_of(stream).add([this, mark = owned(event).event->latest()] {
    if (mark.wait()) return;
    lost_.store(true, std::memory_order_release);
    fail_with(concat("process ", mark.maker(), ", for whose work it waited, has ended"));
  });
}

void HostDevice::fail_with(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = text;
}

std::string HostDevice::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

void HostDevice::count(const char* kind) {
  if (broken_) fail(ErrorKind::unavailable, name(), ": ", kind, " failed: it has broken down");
  std::lock_guard lock(mutex_);
  for (auto& [name, times] : enqueued_)
    if (name == kind) return void(++times);
  enqueued_.emplace_back(kind, 1);
}

size_t HostDevice::enqueued(const std::string& kind) const {
  std::lock_guard lock(mutex_);
  for (const auto& [name, times] : enqueued_)
    if (name == kind) return times;
  return 0;
}

}  // namespace gpucomm
