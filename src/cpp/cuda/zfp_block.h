// The embedded code of one block of 4 elements, by the tables. Planes above the first that has a bit are one
// 0 each, and are passed at once. Then each coefficient gives its bits of two planes at a time; of what is
// decoded it gets those of up to four.
#pragma once
#include "codecs/blocks/zfp.h"
#include "cuda/zfp_bits.h"

namespace gpucomm::cuda {

template <class Writer>
GPUCOMM_PROGRAM void encode_block(const ZfpTables& tables, const Four& x, uint32_t most, Writer& writer) {
  uint32_t q[4], entry = 0;
  blocks::zfp::coefficients(x.at, most, q);
  const unsigned zeros = kWordBits - 1 - highest(q[0] | q[1] | q[2] | q[3] | 1);
  for (uint32_t& coefficient : q) coefficient <<= zeros;
  writer.put(((most >> 23) + 1) << 1 | 1, kZfpHeaderBits);
  writer.put(0, zeros);
#pragma unroll 1
  while (writer.more() && (q[0] | q[1] | q[2] | q[3]))  // else zeros
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      uint32_t index = append(0, entry << kZfpEncodeN, 3);
      for (uint32_t& coefficient : q) {
        index = append(index, coefficient, 2);
        coefficient <<= 2;
      }
      entry = tables.encode[index];
      writer.put(entry >> 18, entry & 31);
    }
}

template <class Reader>
GPUCOMM_PROGRAM void decode_block(const ZfpTables& tables, Reader reader, Four& x) {
  uint32_t q[4] = {}, entry = 0;
  const unsigned zeros = reader.zeros();
  unsigned planes = kWordBits - zeros;  // that may come
  reader.skip(zeros);
#pragma unroll 1
  while (reader.more() && planes) {
    entry = tables.decode[(entry & 0xe00) | reader.next()];
    reader.skip(entry >> 5 & 15);
    unsigned count = entry & 7;
    if (count > planes) count = planes;
    for (int i = 0; i < 4; ++i) q[i] = append(q[i], entry << (4 * i), count);
    planes -= count;
  }
  for (uint32_t& coefficient : q) coefficient = shift_left(coefficient, planes);
  blocks::zfp::integers(q);
  const uint32_t field = reader.header >> 1 & 0xff;
  if (blocks::zfp::is_plain(field))
    blocks::zfp::plain_values(q, field, x.at);
  else
    blocks::zfp::values(q, field, x.at);
}

}  // namespace gpucomm::cuda
