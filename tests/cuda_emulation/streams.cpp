// Streams and events.
#include <cstring>
#include <memory>

#include "captures.h"
#include "devices/host_event.h"
#include "handles.h"

using namespace gpucomm;
using namespace emulated;

namespace {

std::atomic<int> deferred_us{0};  // of streams made from here on

RetiredStreams& retired() {
  static auto* const one = new RetiredStreams;
  return *one;
}

struct OwnedEvent {
  const Gpu* owner;
  std::shared_ptr<HostEvent> event;
};
OwnedEvent& owned(cudaEvent_t event) { return *reinterpret_cast<OwnedEvent*>(event); }

void give(cudaStream_t stream, std::function<void()> job) {
  HostStream& own = stream_of(stream);
  static_cast<Gpu*>(const_cast<void*>(own.owner))->give(own, std::move(job));
}

}  // namespace

cudaError_t emulated::enqueue(cudaStream_t stream, std::function<void()> job) {
  return guarded([&] {
    if (!captures().add(stream, job)) give(stream, std::move(job));
  });
}

void emulated::launch_on(cudaStream_t stream, std::function<void()> job) {
  if (fault("cudaLaunchKernel")) return;
  if (stream_of(stream).owner == &here())
    enqueue(stream, [job = std::move(job), gpu = here().index] { working_on = gpu, job(); });
  else
    result(cudaErrorInvalidResourceHandle);
}

extern "C" {

// For the tests, by ctypes.
void emulated_defer(int us) { deferred_us = us; }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  here();
  check_copy(to, bytes), check_copy(from, bytes);
  return emulated::enqueue(stream, [=] { std::memmove(to, from, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new HostStream(&here(), std::chrono::microseconds(deferred_us)));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  here();
  captures().forget(stream);
  retired().add(std::unique_ptr<HostStream>(reinterpret_cast<HostStream*>(stream)));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  here();
  return guarded([&] {
    if (captures().wait(stream, event)) return;
    give(stream, [mark = owned(event).event->latest()] { mark.wait(); });
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto own = flags & cudaEventInterprocess ? HostEvent::make_shared() : std::make_shared<HostEvent>();
  *event = reinterpret_cast<cudaEvent_t>(new OwnedEvent{&here(), std::move(own)});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  here();
  captures().forget(event);
  delete &owned(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  here();
  if (owned(event).owner != stream_of(stream).owner) return result(cudaErrorInvalidResourceHandle);
  return guarded([&] {
    if (captures().record(event, stream)) return;
    give(stream, [mark = owned(event).event->record()] { mark.reach(); });
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t told = fault(__func__)) return told;
  if (const cudaError_t refused = unsafe_in_captures()) return refused;
  if (const cudaError_t refused = guarded([&] { captures().check(event); })) return refused;
  return owned(event).event->latest().done() ? cudaSuccess : result(cudaErrorNotReady);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  here();
  const std::string& text = owned(event).event->handle();
  return text.empty() ? result(cudaErrorInvalidResourceHandle) : (write(handle, text), cudaSuccess);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  if (own_handle(handle)) return result(cudaErrorDeviceUninitialized);
  auto own = std::make_shared<HostEvent>(std::string(handle.reserved));
  *event = reinterpret_cast<cudaEvent_t>(new OwnedEvent{&here(), std::move(own)});
  return cudaSuccess;
}

}  // extern "C"
