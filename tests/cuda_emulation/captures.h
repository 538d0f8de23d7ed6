// Captures of graphs, of all streams of the process.
#pragma once
#include "base/error.h"
#include "devices/host_graph.h"
#include "gpus.h"

namespace emulated {

gpucomm::HostCaptures& captures();

// What a capture refuses, or that it has failed.
template <class Call>
cudaError_t guarded(const Call& call) {
  try {
    call();
    return cudaSuccess;
  } catch (const gpucomm::Error&) {
    return result(cudaErrorStreamCaptureInvalidated);
  }
}

}  // namespace emulated
