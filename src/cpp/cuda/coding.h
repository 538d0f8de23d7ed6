// Codecs on device memory.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "devices/device.h"

namespace gpucomm::cuda {

// As the functions of Device. status: a word that the device can reach; 0 while nothing went wrong.
std::string refuses(const Codec& codec, Dtype dtype);
void encode(const CodedPiece& piece, const std::byte* dense, std::byte* slot, unsigned long long* status,
            cudaStream_t stream);
void decode(const CodedPiece& piece, const std::byte* slot, std::byte* dense, bool adds, int divisor,
            unsigned long long* status, cudaStream_t stream);
void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, unsigned long long* status,
               cudaStream_t stream);
std::string describe_status(unsigned long long status);  // a sentence

}  // namespace gpucomm::cuda
