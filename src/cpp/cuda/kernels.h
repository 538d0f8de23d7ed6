// What a codec has on CUDA: plug-ins by the codec's name, one file per family.
#pragma once
#include <cuda_runtime_api.h>

#include <string_view>

#include "base/registry.h"
#include "cuda/status.h"
#include "devices/device.h"

namespace gpucomm::cuda {

// One call. What it does not use is null; see coding.h.
struct Job {
  const CodedPiece& piece;
  std::string_view argument;  // of the codec's spec
  const std::byte *dense, *from;
  std::byte *to_dense, *to_slot;
  bool adds;
  int divisor;
  Status* status;
  cudaStream_t stream;

  size_t coded_bytes() const { return piece.codec->max_bytes(piece.count, piece.dtype); }
};

struct CodecKernels {
  static constexpr const char* kKind = "codec of CUDA";
  using Launch = void (*)(const Job&);
  Launch encode, decode, decode_add_encode;
  Launch add_coded = nullptr;  // of additive codecs only
};

}  // namespace gpucomm::cuda
