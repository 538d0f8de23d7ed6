// What a codec has on CUDA: plug-ins by the codec's name, one file per family. These headers are small, for
// nvcc reads them again for every architecture.
#pragma once
#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "cuda/status.h"

namespace gpucomm::cuda {

// One call. What it does not use is null; see coding.h.
struct Job {
  Dtype dtype;
  size_t count, coded_bytes;  // the most, of codecs of variable size
  const char* argument;       // of the codec's spec
  const std::byte *dense, *from;
  std::byte *to_dense, *to_slot;
  bool adds;
  int divisor;
  Status* status;
  cudaStream_t stream;
};

inline constexpr size_t kMostPieces = 16;  // in one kernel

// An object of static storage, which puts itself into the list of them all.
struct CodecKernels {
  using Launch = void (*)(const Job&);
  using LaunchAll = void (*)(const Job* jobs, size_t count);  // which differ in where and how long they are

  CodecKernels(const char* name, LaunchAll encode, LaunchAll decode, LaunchAll recode,
               Launch add_coded = nullptr)
      : name(name), encode(encode), decode(decode), recode(recode), add_coded(add_coded), next(first) {
    first = this;
  }

  const char* name;
  LaunchAll encode, decode, recode;
  Launch add_coded;  // of additive codecs only
  const CodecKernels* next;

  inline static constinit const CodecKernels* first = nullptr;
};

// One after the other.
template <CodecKernels::Launch launch>
void each(const Job* jobs, size_t count) {
  for (size_t i = 0; i < count; ++i) launch(jobs[i]);
}

}  // namespace gpucomm::cuda
