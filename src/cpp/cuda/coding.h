// Codecs on CUDA devices: the same coded bytes and elements as on the host. All calls only enqueue.
// Dense pointers are aligned to their elements, slots to 8 bytes.
#pragma once
#include <cuda_runtime.h>

#include <string>

#include "devices/device.h"

namespace gpucomm::cuda {

// Why there are no kernels for it; empty: there are.
std::string refuses(const Codec& codec, Dtype dtype);

// `status`: where pieces tell what goes wrong that name nobody else; 0 while nothing is; see status.h.
// Pieces of one codec and dtype. divisor > 1 divides the outcome, after it was rounded to the dtype: as
// reduce() does on the host.
void encode(const std::vector<Encoding>& all, unsigned long long* status, cudaStream_t stream);
void decode(const std::vector<Decoding>& all, bool adds, int divisor, unsigned long long* status,
            cudaStream_t stream);
// Of additive codecs.
void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, unsigned long long* status,
               cudaStream_t stream);
// What `from` decodes to is added to `own`, rounded to the dtype and coded again, in one pass.
void recode(const std::vector<Recoding>& all, unsigned long long* status, cudaStream_t stream);

std::string describe_status(unsigned long long status);  // a sentence; empty for 0

}  // namespace gpucomm::cuda
