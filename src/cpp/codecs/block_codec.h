// Codecs of blocks with a scale each. Wire: the payload of all blocks, then the scales of all blocks, so that
// the payload keeps its alignment.
//
// Math has kBlock; kScaleBytes; payload_bytes(count); encode_block(in, count, payload, scale), false if it
// cannot carry an element; decode_block(payload, scale, count, out), false if the scale is damaged. All
// inline.
#pragma once
#include "codecs/float_codec.h"
#include "codecs/levels.h"

namespace gpucomm {

template <class Math>
class BlockCodec : public FloatCodec {
 protected:
  size_t coded_bytes(size_t count) const override {
    return Math::payload_bytes(count) + (count + Math::kBlock - 1) / Math::kBlock * Math::kScaleBytes;
  }
  size_t encode_run(const float* in, Run run, std::byte* out) const override {
    return Leveled<encode_blocks>::run(in, run.count, payload(out, run), scales(out, run));
  }
  size_t decode_run(const std::byte* in, Run run, float* out) const override {
    return Leveled<decode_blocks>::run(payload(in, run), scales(in, run), run.count, out);
  }

 private:
  template <class Byte>
  static Byte* payload(Byte* message, Run run) {
    return message + Math::payload_bytes(run.begin);
  }
  template <class Byte>
  static Byte* scales(Byte* message, Run run) {
    return message + Math::payload_bytes(run.total) + run.begin / Math::kBlock * Math::kScaleBytes;
  }

  // Whole blocks by a loop of their own, whose length the compiler knows.
  static size_t encode_blocks(const float* in, size_t count, std::byte* payload, std::byte* scales) {
    size_t done = 0;
    for (; done + Math::kBlock <= count; done += Math::kBlock) {
      if (!Math::encode_block(in + done, Math::kBlock, payload, scales)) return done;
      payload += Math::payload_bytes(Math::kBlock), scales += Math::kScaleBytes;
    }
    return done < count && !Math::encode_block(in + done, count - done, payload, scales) ? done : count;
  }

  static size_t decode_blocks(const std::byte* payload, const std::byte* scales, size_t count, float* out) {
    size_t done = 0;
    for (; done + Math::kBlock <= count; done += Math::kBlock) {
      if (!Math::decode_block(payload, scales, Math::kBlock, out + done)) return done;
      payload += Math::payload_bytes(Math::kBlock), scales += Math::kScaleBytes;
    }
    return done < count && !Math::decode_block(payload, scales, count - done, out + done) ? done : count;
  }
};

}  // namespace gpucomm
