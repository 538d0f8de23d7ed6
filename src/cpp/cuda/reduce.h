// Reductions of device memory: the twin of reduce/reduce.h.
#pragma once
#include <cuda_runtime_api.h>

#include "devices/device.h"

namespace gpucomm::cuda {

// As Device::reduce; of the current context, whose device is number `device`.
void reduce(const Fold& fold, int device, cudaStream_t stream);

}  // namespace gpucomm::cuda
