// Whether this process can use CUDA, and if not, why. Nothing here makes a context.
#pragma once
#include <string>

namespace gpucomm::cuda {

// As CUDA counts: 13.0 is 13000.
int runtime_version();  // the one that is linked in
int driver_version();   // 0: no driver

// Throws unavailable where devices cannot be asked for.
int device_count();
std::string device_name(int index);  // "NVIDIA H200"

// Empty, or a sentence.
std::string unavailable();

// Throws unavailable: no CUDA here, or no such device.
void check_device(int index);

}  // namespace gpucomm::cuda
