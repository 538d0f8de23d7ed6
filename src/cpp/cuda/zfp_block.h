// The embedded code of one block of 4 elements, by the tables. Planes above the first that has a bit are one
// 0 each, and are passed at once; then eight planes at a time go from bytes of the coefficients to the order
// of the code and back.
#pragma once
#include "codecs/blocks/zfp.h"
#include "cuda/zfp_bits.h"

namespace gpucomm::cuda {

template <class Writer>
GPUCOMM_PROGRAM void encode_block(const ZfpTables& tables, const Four& x, uint32_t most, Writer& writer) {
  uint32_t q[4], entry = 0;
  blocks::zfp::coefficients(x.at, most, q);
  const unsigned zeros = leading_zeros(q[0] | q[1] | q[2] | q[3] | 1);
  for (uint32_t& coefficient : q) coefficient <<= zeros;
  writer.put(((most >> 23) + 1) << 1 | 1, kZfpHeaderBits);
  writer.put(0, zeros);
  for (int eight = 0; eight < 4 && writer.more(); ++eight) {
    uint32_t planes = blocks::zfp::upper_planes(q);
    for (int two = 0; two < 4 && writer.more(); ++two, planes <<= 8) {
      entry = tables.encode[(entry >> 16 & 0x700) | planes >> 24];
      writer.put(entry & 0xffff, entry >> 16 & 0xff);
    }
    for (uint32_t& coefficient : q)
      coefficient <<= 8;  // what comes in is zeros, as is what zfp fills up with
  }
}

template <class Reader>
GPUCOMM_PROGRAM void decode_block(const ZfpTables& tables, Reader reader, Four& x) {
  uint32_t q[4] = {}, about = 0;
  uint64_t planes = 0;  // the last one lowest
  unsigned some = 0;    // bits of them, not yet in q
  int place = 24;       // of the next eight planes' bytes
  const auto add = [&](uint32_t eight) {
    const uint32_t bytes = blocks::zfp::bytes_of_planes(eight);
    for (int i = 0; i < 4; ++i) q[i] |= (bytes >> (8 * i) & 0xff) << place;
    place -= 8;
  };
  const unsigned zeros = reader.zeros();
  reader.skip(zeros);
  while (reader.more() && place >= 0) {
    const uint32_t entry = tables.decode[(about & 0xe00) | reader.next()];
    about = entry >> 16;
    reader.skip(entry >> 28);
    planes = planes << (about & 31) | (entry & 0xffff);
    some += about & 31;
    if (some >= 32) some -= 32, add(static_cast<uint32_t>(planes >> some));
  }
  if (some && place >= 0) add(static_cast<uint32_t>(planes << (32 - some)));
  for (uint32_t& coefficient : q) coefficient >>= zeros;  // what is beyond plane 0 goes
  blocks::zfp::integers(q);
  const uint32_t field = reader.header >> 1 & 0xff;
  if (blocks::zfp::is_plain(field))
    blocks::zfp::plain_values(q, field, x.at);
  else
    blocks::zfp::values(q, field, x.at);
}

}  // namespace gpucomm::cuda
