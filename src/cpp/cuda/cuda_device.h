// A GPU as a Device: its primary context, so that memory and streams of any CUDA library of the process will
// do.
#pragma once
#include <memory>

#include "devices/device.h"

namespace gpucomm::cuda {

// Throws unavailable: no driver, one too old, no GPU, no such index.
std::shared_ptr<Device> open_device(int index);

}  // namespace gpucomm::cuda
