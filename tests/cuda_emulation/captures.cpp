// Captures of graphs: all in the global mode, the strictest, which is torch's where nothing else is said.
#include "captures.h"

#include <memory>
#include <utility>

using namespace gpucomm;
using namespace emulated;

static thread_local cudaStreamCaptureMode mode_here = cudaStreamCaptureModeGlobal;

HostCaptures& emulated::captures() {
  static auto* const one = new HostCaptures;
  return *one;
}

cudaError_t emulated::unsafe_in_captures() {
  here();
  const bool minds = mode_here != cudaStreamCaptureModeRelaxed;
  return minds && captures().fail_all() ? result(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

extern "C" {

// For the tests, by ctypes. False, or null: refused.
bool emulated_begin_capture(cudaStream_t stream) {
  return guarded([&] { captures().begin(stream); }) == cudaSuccess;
}
void* emulated_end_capture(cudaStream_t stream) {
  std::shared_ptr<HostGraph> graph;
  guarded([&] { graph = captures().end(stream); });
  return graph ? new std::shared_ptr<HostGraph>(std::move(graph)) : nullptr;
}
void emulated_launch(const void* graph, cudaStream_t stream) {
  emulated::enqueue(stream, [own = *static_cast<const std::shared_ptr<HostGraph>*>(graph)] { own->run(); });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  here();
  return std::swap(*mode, mode_here), cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  here();
  if (const cudaError_t told = fault(__func__)) return told;
  const HostCaptures::State state = captures().of(stream);
  *id = state.id;
  *status = state.failed ? cudaStreamCaptureStatusInvalidated
            : state.id   ? cudaStreamCaptureStatusActive
                         : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

}  // extern "C"
