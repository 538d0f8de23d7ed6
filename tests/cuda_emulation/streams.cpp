// Streams, events and graphs.
#include <cstring>
#include <memory>

#include "base/error.h"
#include "devices/host_event.h"
#include "devices/host_graph.h"
#include "gpus.h"
#include "handles.h"

using namespace gpucomm;
using namespace emulated;

namespace {

std::atomic<int> deferred_us{0};  // of streams made from here on

HostCaptures& captures() {
  static auto* const one = new HostCaptures;
  return *one;
}

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

// What a capture refuses.
template <class Call>
cudaError_t guarded(const Call& call) {
  try {
    call();
    return cudaSuccess;
  } catch (const Error&) {
    return result(cudaErrorStreamCaptureInvalidated);
  }
}

}  // namespace

void emulated::enqueue(cudaStream_t stream, std::function<void()> job) {
  if (!captures().add(stream, job)) give(stream, std::move(job));
}

void emulated::launch_on(cudaStream_t stream, std::function<void()> job) {
  if (fault("cudaLaunchKernel")) return;
  if (stream_of(stream).owner == &here())
    enqueue(stream, std::move(job));
  else
    result(cudaErrorInvalidResourceHandle);
}

extern "C" {

// For the tests, by ctypes.
void emulated_defer(int us) { deferred_us = us; }
void* emulated_graph(cudaStream_t stream, int begins) try {
  captures_here += begins ? 1 : -1;
  if (!begins) return new std::shared_ptr<HostGraph>(captures().end(stream));
  captures().begin(stream);
  return nullptr;
} catch (const Error&) {
  return nullptr;
}
void emulated_launch(const void* graph, cudaStream_t stream) {
  emulated::enqueue(stream, [own = *static_cast<const std::shared_ptr<HostGraph>*>(graph)] { own->run(); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  emulated::enqueue(stream, [=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new HostStream(&here(), std::chrono::microseconds(deferred_us)));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  captures().forget(stream);
  retired().add(std::unique_ptr<HostStream>(reinterpret_cast<HostStream*>(stream)));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return guarded([&] {
    if (captures().wait(stream, event)) return;
    give(stream, [mark = owned(event).event->latest()] { mark.wait(); });
  });
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  if (const cudaError_t told = fault(__func__)) return told;
  *id = captures().of(stream);
  *status = *id ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto own = flags & cudaEventInterprocess ? HostEvent::make_shared() : std::make_shared<HostEvent>();
  *event = reinterpret_cast<cudaEvent_t>(new OwnedEvent{&here(), std::move(own)});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  captures().forget(event);
  delete &owned(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (owned(event).owner != stream_of(stream).owner) return result(cudaErrorInvalidResourceHandle);
  return guarded([&] {
    if (captures().record(event, stream)) return;
    give(stream, [mark = owned(event).event->record()] { mark.reach(); });
  });
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return std::swap(*mode, capture_mode), cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t told = fault(__func__)) return told;
  if (disturbs_capture()) return result(cudaErrorStreamCaptureUnsupported);
  const cudaError_t refused = guarded([&] { captures().check(event); });
  if (refused) return refused;
  return owned(event).event->latest().done() ? cudaSuccess : result(cudaErrorNotReady);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return write(handle, owned(event).event->handle()), cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  auto own = std::make_shared<HostEvent>(std::string(handle.reserved));
  *event = reinterpret_cast<cudaEvent_t>(new OwnedEvent{&here(), std::move(own)});
  return cudaSuccess;
}

}  // extern "C"
