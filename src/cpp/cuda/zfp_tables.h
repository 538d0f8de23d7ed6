// The embedded code of zfp as tables that are small enough for the memory of a thread block, made of the same
// functions as the host's (codecs/zfp_planes.h).
#pragma once
#include "codecs/zfp_planes.h"
#include "cuda/bits.h"

namespace gpucomm::cuda {

inline constexpr unsigned kZfpAhead = 8;  // bits of the stream that a look into the table takes
inline constexpr unsigned kZfpEncodeEntries = 5 * 256, kZfpDecodeEntries = 5 << (kZfpAhead + 1);
inline constexpr unsigned kZfpEncodeN = 32 - 8 - 3;  // shifts n of an entry to the top

struct alignas(16) ZfpTables {
  // [n << 8 | of each coefficient in turn its bits in two planes]: bits << 18 | n << 8 | length.
  uint32_t encode[kZfpEncodeEntries];
  // [n << 9 | 1 << left | the next `left` bits], left from 1 to 8: up to four planes; of each coefficient in
  // turn its bits in four, those of the first plane on top; n << 9 | length << 5 | the number of planes.
  uint32_t decode[kZfpDecodeEntries];
};

constexpr uint32_t encode_planes(uint32_t n, uint32_t pairs) {
  uint32_t upper = 0, lower = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    upper |= (pairs >> (7 - 2 * i) & 1) << i;
    lower |= (pairs >> (6 - 2 * i) & 1) << i;
  }
  const zfp::Code code = zfp::encode_plane(zfp::encode_plane({0, 0, n}, upper), lower);
  return code.bits << 18 | code.n << 8 | code.length;
}

// The planes that `left` bits of the stream hold, whole ones where the stream goes on behind them.
constexpr uint32_t decode_planes(uint32_t n, uint32_t stream, uint32_t left) {
  uint32_t fours = 0, count = 0, used = 0;
  while (count < 4 && used < left) {
    const uint32_t rest = left - used;
    const bool whole = zfp::decode_plane(n, stream >> used, zfp::kLongest).length <= rest;
    if (left == kZfpAhead && !whole) break;
    const zfp::Code plane = zfp::decode_plane(n, stream >> used, rest);
    for (uint32_t i = 0; i < 4; ++i) fours |= (plane.bits >> i & 1) << (31 - 4 * i - count);
    n = plane.n, used += plane.length, ++count;
  }
  return fours | n << 9 | used << 5 | count;
}

constexpr ZfpTables make_zfp_tables() {
  ZfpTables tables = {};
  for (uint32_t n = 0; n < 5; ++n) {
    for (uint32_t pairs = 0; pairs < 256; ++pairs) tables.encode[n << 8 | pairs] = encode_planes(n, pairs);
    for (uint32_t left = 1; left <= kZfpAhead; ++left)
      for (uint32_t stream = 0; stream < 1u << left; ++stream)
        tables.decode[n << (kZfpAhead + 1) | 1u << left | stream] = decode_planes(n, stream, left);
  }
  return tables;
}

#ifdef __CUDACC__
static __device__ const ZfpTables kZfpTables = make_zfp_tables();
#else
inline constexpr ZfpTables kZfpTables = make_zfp_tables();
#endif

}  // namespace gpucomm::cuda
