// Calls of the CUDA runtime that fail become errors in sentences.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

namespace gpucomm::cuda {

inline constexpr int kDevicesKnown = 64;  // for which figures are kept

// Whether an error of this kind stays with the context: every later call fails with it.
bool sticky(cudaError_t error);
// "out of memory (cudaErrorMemoryAllocation)", and what it means where that is not plain.
std::string describe(cudaError_t error);
// "cudaMalloc failed: " and that.
std::string sentence(cudaError_t error, const char* call);
// Throws unavailable, naming the current device. An error that is not sticky is cleared, so that who calls
// CUDA after us does not find it.
void check(cudaError_t error, const char* call);

#define GPUCOMM_CUDA(call) ::gpucomm::cuda::check(call, #call)

}  // namespace gpucomm::cuda
