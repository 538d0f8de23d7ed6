// fixed:EPS: integers times one step for all elements; additive: coded sums are integer sums.
// The step is the greatest power of two up to 2 EPS, so that coding is exact arithmetic and the error at most
// step / 2 <= EPS. The width (8, 16 or 32 bits) follows from the largest magnitude of all ranks, with
// headroom for the sum of `world` messages; the concrete spec is fixed:EPS:WIDTH:WORLD. Source: the idea of
// hZCCL (Huang et al. 2024, arXiv:2408.07422): quantise once, add coded.
#include <charconv>
#include <cmath>
#include <type_traits>

#include "codecs/blocks/portable.h"
#include "codecs/fixed_setting.h"
#include "codecs/float_codec.h"
#include "codecs/levels.h"
#include "codecs/unaligned.h"

namespace gpucomm {
namespace {

using blocks::bits_of;
using blocks::nearest_of_any;

// Stops before the run of elements in which one, in steps, is above `limit` (bits of a float), or no number.
template <class T>
size_t encode_kernel(const float* in, size_t count, float inverse, int32_t limit, Unaligned<T>* out) {
  constexpr size_t kSome = 256;
  for (size_t begin = 0; begin < count; begin += kSome) {
    const size_t end = begin + kSome < count ? begin + kSome : count;
    int32_t beyond = 0;
    for (size_t i = begin; i < end; ++i) {
      const uint32_t q = bits_of(nearest_of_any(in[i] * inverse));
      const bool fits = static_cast<int32_t>(q & blocks::kMagnitudeBits) <= limit;
      beyond |= -static_cast<int32_t>(!fits);
      out[i].value = static_cast<T>(static_cast<int32_t>(blocks::float_of(blocks::choose(fits, q, 0))));
    }
    if (beyond) return begin;
  }
  return count;
}

template <class T>
void decode_kernel(const Unaligned<T>* in, size_t count, float step, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i].value) * step;
}

template <class T>
void add_kernel(const Unaligned<T>* in, size_t count, Unaligned<T>* into) {
  for (size_t i = 0; i < count; ++i)
    into[i].value = static_cast<T>(static_cast<uint32_t>(into[i].value) + static_cast<uint32_t>(in[i].value));
}

constexpr int kWidths[] = {8, 16, 32};

std::string spec_of(const FixedSetting& setting) {
  char eps[32];
  const std::string text = "fixed:" + std::string(eps, std::to_chars(eps, eps + sizeof eps, setting.eps).ptr);
  return setting.width ? concat(text, ":", setting.width, ":", setting.world) : text;
}

class Fixed final : public FloatCodec {
  // call(T()), T the integer of the width.
  template <class Call>
  auto with_integer(Call call) const {
    if (setting_.width == 8) return call(int8_t{});
    if (setting_.width == 16) return call(int16_t{});
    return call(int32_t{});
  }

 public:
  explicit Fixed(FixedSetting setting) : setting_(setting), step_(setting.step()), spec_(spec_of(setting)) {
    traits_.needs_maximum = setting.width == 0;
    if (setting.width) limit_ = setting.limit();
  }

  const CodecTraits& traits() const override { return traits_; }
  std::string spec() const override { return spec_; }
  std::string kind() const override {
    return setting_.width ? concat("fixed, ", setting_.width, " bits") : "fixed";
  }

  int most_summed() const override { return setting_.world; }

  void add(const std::byte* in, size_t bytes, std::byte* into) const override {
    with_integer([&]<class T>(T) { add_as<std::make_unsigned_t<T>>(in, bytes, into); });
  }

  std::shared_ptr<const Codec> agreed(double max_abs, int world) const override {
    if (setting_.width) return FloatCodec::agreed(max_abs, world);
    if (!std::isfinite(max_abs) || max_abs < 0 || world < 1)
      fail(ErrorKind::invalid_argument, "codec ", spec(), " cannot agree on a largest magnitude of ", max_abs,
           " for ", world, " ranks: the magnitude must be finite and not negative, and the ranks at least 1");
    for (const int width : kWidths) {
      const FixedSetting setting{setting_.eps, width, world};
      if (std::nearbyint(max_abs / step_) <= setting.limit()) return std::make_shared<Fixed>(setting);
    }
    fail(ErrorKind::invalid_argument, "codec ", spec(), " has no width for magnitudes of ", max_abs,
         " summed over ", world, " ranks: in steps of ", step_,
         " they need more than 32 bits; use a larger EPS");
  }

 protected:
  size_t coded_bytes(size_t count) const override {
    return count *
           (setting_.width ? setting_.width / 8 : sizeof(int32_t));  // the most, before the width is known
  }
  size_t encode_run(const float* in, Run run, std::byte* out) const override {
    return with_integer([&]<class T>(T) { return encode_as<T>(in, run, out); });
  }
  size_t decode_run(const std::byte* in, Run run, float* out) const override {
    return with_integer([&]<class T>(T) { return decode_as<T>(in, run, out); });
  }
  double lost(double) const override { return step_ / 2.0; }
  float stray() const override { return setting_.stray(); }
  const char* refusal(float value) const override {
    if (const char* reason = FloatCodec::refusal(value)) return reason;
    return nearest_of_any(std::abs(value) / step_) > limit_ ? "it is beyond the agreed largest magnitude"
                                                            : nullptr;
  }

 private:
  template <class T>
  size_t encode_as(const float* in, Run run, std::byte* out) const {
    auto* target = reinterpret_cast<Unaligned<T>*>(out) + run.begin;
    return Leveled<encode_kernel<T>>::run(in, run.count, 1 / step_, static_cast<int32_t>(bits_of(limit_)),
                                          target);
  }
  template <class T>
  size_t decode_as(const std::byte* in, Run run, float* out) const {
    Leveled<decode_kernel<T>>::run(reinterpret_cast<const Unaligned<T>*>(in) + run.begin, run.count, step_,
                                   out);
    return run.count;
  }
  template <class T>
  void add_as(const std::byte* in, size_t bytes, std::byte* into) const {
    auto* target = reinterpret_cast<Unaligned<T>*>(into);
    Leveled<add_kernel<T>>::run(reinterpret_cast<const Unaligned<T>*>(in), bytes / sizeof(T), target);
  }

  CodecTraits traits_ = {.additive = true, .bound = Bound::absolute, .needs_maximum = true};
  FixedSetting setting_;
  float step_;
  float limit_ = 0;
  std::string spec_;  // asked for in every call
};

std::shared_ptr<const Codec> make(std::string_view argument) {
  const std::optional<FixedSetting> setting = parse_fixed(argument);
  return setting ? std::make_shared<Fixed>(*setting) : nullptr;
}

const Registry<CodecEntry>::Add fixed{
    "fixed",
    {"Integers of one step for all, of a width that holds the sum of all ranks: coded messages are added as "
     "they are.",
     "fixed:EPS, where EPS, from 2^-127 to 2^96, is the largest error of an element",
     {"fixed:0.001", "fixed:1e-05", "fixed:0.25"},
     make}};

}  // namespace
}  // namespace gpucomm
