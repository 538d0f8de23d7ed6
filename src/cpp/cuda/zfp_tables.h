// The embedded code of zfp as tables that are small enough for the memory of a thread block, made of the same
// functions as the host's (codecs/zfp_planes.h).
#pragma once
#include "codecs/zfp_planes.h"
#include "cuda/program.h"

namespace gpucomm::cuda {

inline constexpr unsigned kZfpEncodeEntries = 5 * 256, kZfpDecodeEntries = 5 * 256;

struct ZfpTables {
  // [n << 8 | two planes, the upper in the high half]: n << 24 | length << 16 | bits.
  uint32_t encode[kZfpEncodeEntries];
  // [n << 8 | 1 << left | the next `left` bits], left up to 7: n << 8 | length << 4 | plane.
  uint16_t decode[kZfpDecodeEntries];
};

constexpr ZfpTables make_zfp_tables() {
  ZfpTables tables = {};
  for (uint32_t n = 0; n < 5; ++n) {
    for (uint32_t planes = 0; planes < 256; ++planes)
      tables.encode[n << 8 | planes] =
          zfp::encode_plane(zfp::encode_plane({0, 0, n}, planes >> 4), planes & 15).packed();
    for (uint32_t left = 0; left <= zfp::kLongest; ++left)
      for (uint32_t stream = 0; stream < 1u << left; ++stream) {
        const zfp::Code code = zfp::decode_plane(n, stream, left);
        tables.decode[n << 8 | 1u << left | stream] =
            static_cast<uint16_t>(code.n << 8 | code.length << 4 | code.bits);
      }
  }
  return tables;
}

#ifdef __CUDACC__
static __device__ const ZfpTables kZfpTables = make_zfp_tables();
#else
inline constexpr ZfpTables kZfpTables = make_zfp_tables();
#endif

}  // namespace gpucomm::cuda
