// bf16, fp16: every element rounded to that type, to nearest and ties to even.
// Wire: 2 bytes per element. Beyond the type's largest number an element becomes Inf, as in every cast.
#include <limits>

#include "codecs/float_codec.h"
#include "codecs/floats.h"

namespace gpucomm {
namespace {

constexpr CodecTraits kTraits = {.bound = Bound::element, .keeps_nan = true, .keeps_infinity = true};

template <Dtype kCoded>
class Cast final : public FloatCodec {
 public:
  const CodecTraits& traits() const override { return kTraits; }
  std::string spec() const override { return kCoded == Dtype::float16 ? "fp16" : "bf16"; }

 protected:
  size_t coded_bytes(size_t count) const override { return 2 * count; }
  size_t encode_run(const float* in, Run run, std::byte* out) const override {
    narrow(kCoded, in, run.count, out + 2 * run.begin);
    return run.count;
  }
  size_t decode_run(const std::byte* in, Run run, float* out) const override {
    widen(kCoded, in + 2 * run.begin, run.count, out);
    return run.count;
  }
  double lost(double block_max) const override {
    return block_max > largest(kCoded) ? std::numeric_limits<double>::infinity()
                                       : rounding(kCoded, block_max);
  }
};

const Registry<CodecEntry>::Add bf16{"bf16",
                                     {"Each element as bfloat16: the range of float32, 8 bits of precision.",
                                      "bf16",
                                      {"bf16"},
                                      without_argument<Cast<Dtype::bfloat16>>,
                                      {"bf16"}}};
const Registry<CodecEntry>::Add fp16{"fp16",
                                     {"Each element as float16: 11 bits of precision, up to 65504.",
                                      "fp16",
                                      {"fp16"},
                                      without_argument<Cast<Dtype::float16>>,
                                      {"fp16"}}};

}  // namespace
}  // namespace gpucomm
