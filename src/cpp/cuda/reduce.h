// Reductions of device memory: the twins of reduce/reduce.h and reduce/scale.h.
#pragma once
#include <cuda_runtime_api.h>

#include "devices/device.h"

namespace gpucomm::cuda {

// As Device::copy_all; on the current device.
void copy(const std::vector<Copy>& all, cudaStream_t stream);

// As Device::reduce_all; on the current device.
void reduce(const std::vector<Fold>& all, cudaStream_t stream);

// As Device::scale; on the current device.
void scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
           cudaStream_t stream);

// As Device::convert; on the current device.
void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count, cudaStream_t stream);

// As Device::difference; on the current device.
void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                cudaStream_t stream);

// As Device::add_squares; on the current device.
void add_squares(const Squared& of, std::byte* parts, cudaStream_t stream);

}  // namespace gpucomm::cuda
