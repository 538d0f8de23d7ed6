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

// The code of two planes, of coefficient i the bits at first + step i of `pairs`, the upper plane's above.
constexpr zfp::Code encode_two_planes(uint32_t n, uint32_t pairs, int first, int step) {
  uint32_t planes[2] = {};
  for (int i = 0; i < 4; ++i)
    for (int plane = 0; plane < 2; ++plane) planes[plane] |= (pairs >> (first + step * i + plane) & 1) << i;
  return zfp::encode_plane(zfp::encode_plane({0, 0, n}, planes[1]), planes[0]);
}

constexpr uint32_t encode_planes(uint32_t n, uint32_t pairs) {
  const zfp::Code code = encode_two_planes(n, pairs, 6, -2);
  return code.bits << 18 | code.n << 8 | code.length;
}

// zfp::decode_plane() by its table: compilers give up on tables that take too many steps.
constexpr zfp::Code plane_ahead(uint32_t n, uint32_t stream, uint32_t left) {
  const uint32_t most = left < zfp::kLongest ? left : zfp::kLongest;
  const uint32_t entry = zfp::kDecodeTable<uint32_t>[most << 10 | n << 7 | (stream & 127)];
  return {entry & 0xffff, entry >> 16 & 0xff, entry >> 24};
}

// What `left` bits of the stream hold: of each coefficient its bits, those of the first plane on top.
struct PlanesAhead {
  uint32_t of[4], count, used, n;
};

// Whole planes only where the stream goes on behind these bits, up to kMost.
template <uint32_t kWindow, uint32_t kMost>
constexpr PlanesAhead look_ahead(uint32_t n, uint32_t stream, uint32_t left) {
  PlanesAhead planes = {{}, 0, 0, n};
  while (planes.count < kMost && planes.used < left) {
    const uint32_t rest = left - planes.used, bits = stream >> planes.used;
    const bool whole = plane_ahead(planes.n, bits, zfp::kLongest).length <= rest;
    if (left == kWindow && !whole) break;
    const zfp::Code plane = plane_ahead(planes.n, bits, rest);
    for (uint32_t i = 0; i < 4; ++i) planes.of[i] = planes.of[i] << 1 | (plane.bits >> i & 1);
    planes.n = plane.n, planes.used += plane.length, ++planes.count;
  }
  return planes;
}

constexpr uint32_t decode_planes(uint32_t n, uint32_t stream, uint32_t left) {
  const PlanesAhead planes = look_ahead<kZfpAhead, 4>(n, stream, left);
  uint32_t entry = planes.n << 9 | planes.used << 5 | planes.count;
  for (uint32_t i = 0; i < 4; ++i) entry |= planes.of[i] << (4 - planes.count) << (28 - 4 * i);
  return entry;
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
