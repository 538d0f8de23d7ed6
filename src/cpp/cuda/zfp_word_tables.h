// The embedded code of zfp as tables for blocks that are a word each, made of the same functions as the
// host's (codecs/zfp_planes.h). What is in an entry lies where few instructions take it from.
#pragma once
#include "cuda/zfp_tables.h"

namespace gpucomm::cuda {

inline constexpr unsigned kZfpWindow = 10;     // bits of the stream that a look into the table takes
inline constexpr unsigned kZfpMostPlanes = 4;  // that it gives at most

struct alignas(16) ZfpEncodeTable {
  // [n << 8 | of coefficient i at 2 i its bits in two planes, the upper one above]: the code, its first bit
  // on top, down to bit 18; n in the second byte; the length in the first.
  uint32_t encode[5 * 256];
};
struct alignas(16) ZfpDecodeTable {
  // [n << 11 | 1 << left | the next `left` bits], left up to 10: of each coefficient its bits in up to four
  // planes, those of the first on top, at bits 5, 9, 16 and 20; n at 13; the bits that were read at 0; two to
  // the number of planes at 27. Where n is 0 a plane with any bit is next: its first bit, 1, is one of those
  // that were read, but not of the index: if all were odd, they would share half of the banks.
  uint32_t decode[5 << (kZfpWindow + 1)];
};
// Not derived from both: for a base nvcc asks, again and again, whether the pointer is null.
struct ZfpWordTables {
  ZfpEncodeTable encode;
  ZfpDecodeTable decode;
  GPUCOMM_PROGRAM operator ZfpEncodeTable&() { return encode; }
  GPUCOMM_PROGRAM operator ZfpDecodeTable&() { return decode; }
};
inline constexpr uint32_t kZfpFieldOfN = 7u << 13;

constexpr uint32_t encode_pairs(uint32_t n, uint32_t pairs) {
  const zfp::Code code = encode_two_planes(n, pairs, 0, 2);
  uint32_t entry = code.n << 8 | code.length;
  for (uint32_t i = 0; i < code.length; ++i) entry |= (code.bits >> i & 1) << (31 - i);
  return entry;
}

constexpr uint32_t decode_window(uint32_t n, uint32_t stream, uint32_t left) {
  constexpr uint32_t kPlaces[] = {5, 9, 16, 20};
  const PlanesAhead planes = n ? look_ahead<kZfpWindow, kZfpMostPlanes>(n, stream, left)
                               : look_ahead<kZfpWindow + 1, kZfpMostPlanes>(0, stream << 1 | 1, left + 1);
  uint32_t entry = planes.used | planes.n << 13 | 1u << (27 + planes.count);
  for (uint32_t i = 0; i < 4; ++i) entry |= planes.of[i] << kPlaces[i];
  return entry;
}

constexpr ZfpEncodeTable make_zfp_encode_table() {
  ZfpEncodeTable table = {};
  for (uint32_t n = 0; n < 5; ++n)
    for (uint32_t pairs = 0; pairs < 256; ++pairs) table.encode[n << 8 | pairs] = encode_pairs(n, pairs);
  return table;
}

constexpr ZfpDecodeTable make_zfp_decode_table() {
  ZfpDecodeTable table = {};
  for (uint32_t n = 0; n < 5; ++n) {
    uint32_t* const decode = table.decode + (n << (kZfpWindow + 1));
    decode[0] = decode_window(n, 0, 0);  // for who looks behind the end
    for (uint32_t left = 0; left <= kZfpWindow; ++left)
      for (uint32_t stream = 0; stream < 1u << left; ++stream)
        decode[1u << left | stream] = decode_window(n, stream, left);
  }
  return table;
}

#ifdef __CUDACC__
static __device__ const ZfpEncodeTable kZfpEncodeTable = make_zfp_encode_table();
static __device__ const ZfpDecodeTable kZfpDecodeTable = make_zfp_decode_table();
#else
inline constexpr ZfpEncodeTable kZfpEncodeTable = make_zfp_encode_table();
inline constexpr ZfpDecodeTable kZfpDecodeTable = make_zfp_decode_table();
#endif

// Whether the codes of so many pairs of planes fit in a word, whatever comes before.
constexpr bool fit_in_word(int pairs_of_planes) {
  uint32_t longest[5] = {};
  for (; pairs_of_planes > 0; --pairs_of_planes) {
    uint32_t next[5] = {};
    for (uint32_t n = 0; n < 5; ++n)
      for (uint32_t pairs = 0; pairs < 256; ++pairs) {
        const uint32_t entry = encode_pairs(n, pairs);
        const uint32_t length = (entry & 255) + longest[entry >> 8 & 7];
        next[n] = length > next[n] ? length : next[n];
      }
    for (uint32_t n = 0; n < 5; ++n) longest[n] = next[n];
  }
  for (const uint32_t length : longest)
    if (length >= kWordBits) return false;
  return true;
}
static_assert(fit_in_word(3));

}  // namespace gpucomm::cuda
