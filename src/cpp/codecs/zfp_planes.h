// The embedded code of zfp for one bit plane of 4 coefficients, as tables: the first n bits as they are (n:
// how many coefficients had a bit so far), then runs of zeros up to the next bit, each behind a test whether
// any is left.
#pragma once
#include <array>
#include <cstdint>

#include "codecs/blocks/portable.h"

namespace gpucomm::zfp {

struct Code {
  uint32_t bits = 0, length = 0, n = 0;
  constexpr uint32_t packed() const { return bits | length << 16 | n << 24; }
};

constexpr Code encode_plane(Code code, uint32_t plane) {
  const auto put = [&](uint32_t bit) { code.bits |= bit << code.length++; };
  for (uint32_t i = 0; i < code.n; ++i, plane >>= 1) put(plane & 1);
  for (; code.n < 4; plane >>= 1, ++code.n) {
    put(plane != 0);
    if (!plane) break;
    for (; code.n < 3; plane >>= 1, ++code.n) {
      put(plane & 1);
      if (plane & 1) break;
    }
  }
  return code;
}

// The code of two planes, the upper in the high half of `planes`: [n << 8 | planes].
template <class T>
constexpr std::array<T, 5 * 256> make_encode_table() {
  std::array<T, 5 * 256> table{};
  for (uint32_t n = 0; n < 5; ++n)
    for (uint32_t planes = 0; planes < 256; ++planes)
      table[n << 8 | planes] = encode_plane(encode_plane({0, 0, n}, planes >> 4), planes & 15).packed();
  return table;
}

inline constexpr uint32_t kLongest = 7;  // bits of a plane's code

// What the stream says of a plane when only `left` bits are left: in bits the plane.
GPUCOMM_BLOCK constexpr Code decode_plane(uint32_t n, uint32_t stream, uint32_t left) {
  Code code = {0, 0, n};
  const auto more = [&] { return code.length < left; };
  const auto take = [&] { return stream >> code.length++ & 1; };
  for (uint32_t i = 0; i < n && more(); ++i) code.bits |= take() << i;
  for (; more() && code.n < 4; ++code.n) {
    if (!take()) break;
    while (more() && code.n < 3 && !take()) ++code.n;
    code.bits |= 1u << code.n;
  }
  return code;
}

// [left << 10 | n << 7 | the next 7 bits], left up to 7.
template <class T>
constexpr std::array<T, 8 << 10> make_decode_table() {
  std::array<T, 8 << 10> table{};
  for (uint32_t left = 0; left <= kLongest; ++left)
    for (uint32_t n = 0; n < 5; ++n)
      for (uint32_t stream = 0; stream < 128; ++stream)
        table[left << 10 | n << 7 | stream] = decode_plane(n, stream, left).packed();
  return table;
}

// Entries as wide as the words of a SIMD loop, which is what its gathers take.
template <class T>
inline constexpr auto kEncodeTable = make_encode_table<T>();
template <class T>
inline constexpr auto kDecodeTable = make_decode_table<T>();

}  // namespace gpucomm::zfp
