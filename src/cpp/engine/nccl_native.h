// NCCL's own collectives as the algorithm "native" of calls that go over NCCL: no plan, one opaque call.
#pragma once
#include "devices/nccl_communicator.h"
#include "engine/call.h"

namespace gpucomm {

inline constexpr const char* kNative = "native";

// Throws unavailable, invalid_argument or unsupported_type: NCCL has none for such a call.
void check_native(const Shape& shape);

// Both arrays are the caller's, each as long as its collective says.
void enqueue_native(const Shape& shape, const Arrays& arrays, NcclCommunicator& communicator, Stream stream);

}  // namespace gpucomm
