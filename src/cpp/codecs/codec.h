// The contract of a codec: elements to bytes and back. A codec knows no rank and no message but the one it is
// given. One file per codec, which registers itself; who uses codecs reads their traits, never their names.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/registry.h"

namespace gpucomm {

// What the error of an element is held to.
enum class Bound : uint8_t {
  exact,     // nothing is lost
  element,   // relative to the element
  block,     // relative to the largest magnitude of its block
  absolute,  // one figure for all
};
inline constexpr std::string_view kBoundNames[] = {"exact", "element", "block", "absolute"};

struct CodecTraits {
  bool lossy = true;
  bool additive = false;   // add() adds coded messages, in any order with the same bits
  bool fixed_size = true;  // max_bytes() is the size
  Bound bound = Bound::exact;
  size_t block = 1;            // elements coded together: messages are cut at multiples of it
  bool needs_maximum = false;  // cannot encode: agreed() gives the codec that can
  bool keeps_nan = false;      // otherwise encode refuses a NaN, in a sentence that names the element
  bool keeps_infinity = false;
};

// An element that encode was given and cannot carry.
struct RefusedElement : Error {
  RefusedElement(const std::string& spec, size_t element, float value, const char* reason)
      : Error(ErrorKind::invalid_argument,
              concat("codec ", spec, " cannot carry element ", element, ", which is ", value, ": ", reason)),
        spec(spec),
        element(element),
        value(value),
        reason(reason) {}
  std::string spec;
  size_t element;
  float value;
  const char* reason;  // of static storage
};

struct CodecError {  // of what decode would give, against what encode was given; NaN and Inf do not count
  double max_abs = 0;
  double sum_sq = 0;
};

// Where encode tells of each element what it loses: `times` times what decode would give less than it was
// given. 0 where that is no finite number, beyond the largest number of the dtype that. What loses nothing
// leaves it alone.
struct Losses {
  std::byte* elements = nullptr;  // null: not to be told
  int times = 1;
};

// Immutable: threads share it. Pointers need no alignment, counts may be 0, nothing is allocated. Coded bytes
// are little-endian. Equal elements give equal bytes on every machine and at every SIMD level.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual const CodecTraits& traits() const = 0;
  virtual std::string spec() const = 0;  // what parse_codec makes this codec of
  // Codecs of one kind take as long and give as many bytes: what is learnt of one holds for all.
  virtual std::string kind() const { return spec(); }
  virtual bool takes(Dtype dtype) const = 0;
  virtual size_t max_bytes(size_t count, Dtype dtype) const = 0;
  // Coded bytes for a byte of a long message.
  double bytes_a_byte(Dtype dtype) const {
    constexpr size_t kMany = 1 << 16;
    return static_cast<double>(max_bytes(kMany, dtype)) / static_cast<double>(kMany * size_of(dtype));
  }

  // Returns the bytes written to `out`, which has room for max_bytes. Throws unsupported_type for a dtype
  // that it does not take, and invalid_argument for an element that it cannot carry; `out` is then undefined.
  virtual size_t encode(const std::byte* in, size_t count, Dtype dtype, std::byte* out,
                        CodecError* error = nullptr, Losses losses = {}) const = 0;

  // Throws invalid_argument where the bytes cannot come from encode; never reads beyond `bytes`.
  virtual void decode(const std::byte* in, size_t bytes, size_t count, Dtype dtype, std::byte* out) const = 0;

  // accumulator += what decode would give; of the 16-bit floats in float32, rounded once and not held below
  // Inf.
  virtual void decode_add(const std::byte* in, size_t bytes, size_t count, Dtype dtype,
                          std::byte* accumulator) const = 0;

  // out = own + what `in` decodes to, with the bits of decode_add; the two lie apart.
  virtual void decode_onto(const std::byte* in, size_t bytes, const std::byte* own, size_t count, Dtype dtype,
                           std::byte* out) const;

  // out = coded (own + what `in` decodes to), with the bits of decode_add and encode, without their pass
  // through memory. False: it has no such way, nothing is done.
  virtual bool decode_add_encode(const std::byte* in, size_t bytes, const std::byte* own, size_t count,
                                 Dtype dtype, std::byte* out, Losses losses = {}) const;

  // Of how many ranks' messages sums fit; 0: of as many as there are.
  virtual int most_summed() const { return 0; }

  // Only of additive codecs: into += in, both coded, of the same count.
  virtual void add(const std::byte* in, size_t bytes, std::byte* into) const;

  // Only where needs_maximum: the codec for elements up to `max_abs`, whose sums of `world` coded messages
  // fit. All ranks must ask with the same figures.
  virtual std::shared_ptr<const Codec> agreed(double max_abs, int world) const;

  // The most that decode differs from an element of a block whose largest magnitude is `block_max`, rounding
  // to the dtype included; infinity where it may overflow.
  virtual double bound(double block_max, Dtype dtype) const = 0;
};

struct CodecEntry {
  static constexpr const char* kKind = "codec";
  std::string summary;                // one sentence
  std::string usage;                  // "zfp:R, R bits per value"
  std::vector<std::string> examples;  // specs for tests and tables
  std::function<std::shared_ptr<const Codec>(std::string_view argument)> make;
  std::vector<std::string> bounded = {};  // specs among which a bound on the error chooses
};

// Makes codecs that take none.
template <class Made>
std::shared_ptr<const Codec> without_argument(std::string_view argument) {
  return argument.empty() ? std::make_shared<Made>() : nullptr;
}

// "name" or "name:argument". Throws invalid_argument: unknown names with the known ones, bad arguments with
// the usage.
std::shared_ptr<const Codec> parse_codec(std::string_view spec);
// Throws invalid_argument where sums of so many ranks' messages do not fit.
void check_sums(const Codec& codec, int world);

// The codec or, where it must know the largest magnitude, that for zeros: what is known of its costs before.
inline std::shared_ptr<const Codec> smallest(std::shared_ptr<const Codec> codec, int world) {
  return codec->traits().needs_maximum ? codec->agreed(0, world) : codec;
}

}  // namespace gpucomm
