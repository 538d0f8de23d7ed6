// What gpucomm calls of the CUDA runtime and of the driver, for two GPUs of this machine's memory and threads.
// Streams, events and captures are those of the host device.
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "base/error.h"
#include "devices/host_event.h"
#include "devices/host_graph.h"
#include "devices/host_stream.h"
#include "devices/shared_memory.h"
#include "emulation.h"

using namespace gpucomm;

namespace {

constexpr int kGpus = 2, kProcessors = 3;

std::atomic<int> deferred_us{0};  // of streams made from here on
thread_local std::vector<int> current{0};
thread_local cudaError_t last = cudaSuccess;

struct Gpu {
  int index;
  HostStream standard{this, std::chrono::microseconds(0)};
};
Gpu& gpu(int index) {
  static Gpu* const all[kGpus] = {new Gpu{0}, new Gpu{1}};  // their threads end with the process
  return *all[index];
}
Gpu& here() { return gpu(current.back()); }

HostCaptures& captures() {
  static auto* const one = new HostCaptures;
  return *one;
}

// Memory that others may open, and streams that have been ended but hold work.
struct Kept {
  std::mutex mutex;
  std::map<const void*, SharedMemory> memory;
  std::vector<std::unique_ptr<HostStream>> retired;
};
Kept& kept() {
  static auto* const one = new Kept;
  return *one;
}

struct FakeEvent {
  const Gpu* owner;
  std::shared_ptr<HostEvent> event;
};
FakeEvent& fake(cudaEvent_t event) { return *reinterpret_cast<FakeEvent*>(event); }
HostStream& stream_of(cudaStream_t stream) {
  return stream ? *reinterpret_cast<HostStream*>(stream) : here().standard;
}

cudaError_t result(cudaError_t error) { return error ? last = error : error; }

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

template <class Handle>
void write(Handle* handle, const std::string& text) {
  static_assert(sizeof(Handle) == 64);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, text.data(), std::min(text.size(), sizeof *handle - 1));
}

}  // namespace

void emulated::enqueue(cudaStream_t stream, std::function<void()> job) {
  if (!captures().add(stream, job)) stream_of(stream).add(std::move(job));
}

// For the tests, by ctypes.
extern "C" {

void emulated_defer(int us) { deferred_us = us; }
void* emulated_graph(cudaStream_t stream, int begins) try {
  if (!begins) return new std::shared_ptr<HostGraph>(captures().end(stream));
  captures().begin(stream);
  return nullptr;
} catch (const Error&) {
  return nullptr;
}
void emulated_launch(const void* graph, cudaStream_t stream) {
  emulated::enqueue(stream, [own = *static_cast<const std::shared_ptr<HostGraph>*>(graph)] { own->run(); });
}

cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorEmulated"; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidResourceHandle ? "invalid resource handle" : "refused";
}
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = kGpus, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current.back(), cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulated GPU");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = kProcessors, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 1, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  SharedMemory own(bytes);
  *memory = own.data();
  std::lock_guard lock(kept().mutex);
  kept().memory.emplace(*memory, std::move(own));
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::lock_guard lock(kept().mutex);
  kept().memory.erase(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** seen, void* memory, unsigned) { return *seen = memory, cudaSuccess; }
cudaError_t cudaFreeHost(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return *free = *total = 1 << 30, cudaSuccess; }
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
  std::unique_ptr<HostStream> own(reinterpret_cast<HostStream*>(stream));
  own->retire();
  std::lock_guard lock(kept().mutex);
  std::erase_if(kept().retired, [](const auto& one) { return one->ended(); });
  kept().retired.push_back(std::move(own));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return guarded([&] {
    if (captures().wait(stream, event)) return;
    stream_of(stream).add([mark = fake(event).event->latest()] { mark.wait(); });
  });
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  *id = captures().of(stream);
  *status = *id ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  auto own = flags & cudaEventInterprocess ? HostEvent::make_shared() : std::make_shared<HostEvent>();
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent{&here(), std::move(own)});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  captures().forget(event);
  delete &fake(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (fake(event).owner != stream_of(stream).owner) return result(cudaErrorInvalidResourceHandle);
  return guarded([&] {
    if (captures().record(event, stream)) return;
    stream_of(stream).add([mark = fake(event).event->record()] { mark.reach(); });
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const cudaError_t refused = guarded([&] { captures().check(event); });
  if (refused) return refused;
  return fake(event).event->latest().done() ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  std::lock_guard lock(kept().mutex);
  return write(handle, kept().memory.at(memory).handle()), cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  SharedMemory own(std::string(handle.reserved));
  *memory = own.data();
  std::lock_guard lock(kept().mutex);
  kept().memory.emplace(*memory, std::move(own));
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return cudaFree(memory); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return write(handle, fake(event).event->handle()), cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  auto own = std::make_shared<HostEvent>(std::string(handle.reserved));
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent{&here(), std::move(own)});
  return cudaSuccess;
}

// The driver's. A context is its GPU.
static CUresult device_get(CUdevice* device, int index) { return *device = index, CUDA_SUCCESS; }
static CUresult retain(CUcontext* context, CUdevice device) {
  return *context = reinterpret_cast<CUcontext>(&gpu(device)), CUDA_SUCCESS;
}
static CUresult release(CUdevice) { return CUDA_SUCCESS; }
static CUresult push(CUcontext context) {
  return current.push_back(reinterpret_cast<Gpu*>(context)->index), CUDA_SUCCESS;
}
static CUresult pop(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(&here());
  return current.pop_back(), CUDA_SUCCESS;
}
static CUresult context_of(CUstream stream, CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(const_cast<void*>(stream_of(stream).owner));
  return CUDA_SUCCESS;
}
static CUresult attribute(void* value, CUpointer_attribute, CUdeviceptr) {
  return *static_cast<bool*>(value) = true, CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  static const std::map<std::string, void*> all = {
      {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain)},
      {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(release)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop)},
      {"cuStreamGetCtx", reinterpret_cast<void*>(context_of)},
      {"cuPointerGetAttribute", reinterpret_cast<void*>(attribute)}};
  const auto entry = all.find(name);
  *found = entry == all.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  *function = entry == all.end() ? nullptr : entry->second;
  return cudaSuccess;
}

}  // extern "C"
