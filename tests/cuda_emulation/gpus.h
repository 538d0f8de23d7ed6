// The two GPUs of the emulation. Their streams, events and captures are those of the host device.
#pragma once
#include <chrono>
#include <vector>

#include "devices/host_stream.h"
#include "emulation.h"

namespace emulated {

inline constexpr int kGpus = 2;

struct Gpu {
  int index;
  gpucomm::HostStream standard{this, std::chrono::microseconds(0)};
};
inline Gpu& gpu(int index) {
  static Gpu* const all[kGpus] = {new Gpu{0}, new Gpu{1}};  // their threads end with the process
  return *all[index];
}

// Of this thread: the current GPU is the last; and the error that the runtime remembers.
inline thread_local std::vector<int> current{0};
inline thread_local cudaError_t last = cudaSuccess;

// Captures that this thread has begun, as thread-local ones, and what it says of calls that disturb them.
inline thread_local int captures_here = 0;
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
inline bool disturbs_capture() { return captures_here && capture_mode != cudaStreamCaptureModeRelaxed; }

inline Gpu& here() { return gpu(current.back()); }
inline gpucomm::HostStream& stream_of(cudaStream_t stream) {
  return stream ? *reinterpret_cast<gpucomm::HostStream*>(stream) : here().standard;
}
inline cudaError_t result(cudaError_t error) { return error ? last = error : error; }
// What a test has a function answer.
cudaError_t fault(const char* function);

}  // namespace emulated
