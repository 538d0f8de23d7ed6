// identity: the elements as they are. Wire: their own bytes, so of every dtype.
#include <limits>
#include <type_traits>

#include "base/copy.h"
#include "codecs/codec.h"
#include "codecs/floats.h"
#include "codecs/unaligned.h"

namespace gpucomm {
namespace {

template <class T>
void add_plain(const std::byte* in, size_t count, std::byte* accumulator) {
  const auto* from = reinterpret_cast<const Unaligned<T>*>(in);
  auto* to = reinterpret_cast<Unaligned<T>*>(accumulator);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {  // they wrap
      to[i].value = static_cast<T>(static_cast<uint64_t>(to[i].value) + static_cast<uint64_t>(from[i].value));
    } else {
      const T sum = to[i].value + from[i].value;
      to[i].value = sum != sum ? std::numeric_limits<T>::quiet_NaN() : sum;
    }
  }
}

void add_booleans(const std::byte* in, size_t count, std::byte* accumulator) {
  for (size_t i = 0; i < count; ++i)
    accumulator[i] = std::byte(accumulator[i] != std::byte(0) || in[i] != std::byte(0));
}

void add_halves(Dtype dtype, const std::byte* in, size_t count, std::byte* accumulator) {
  constexpr size_t kRun = 1024;
  float values[kRun];
  for (size_t begin = 0; begin < count; begin += kRun) {
    const size_t some = count - begin < kRun ? count - begin : kRun;
    widen(dtype, in + 2 * begin, some, values);
    add_floats(dtype, values, some, accumulator + 2 * begin);
  }
}

constexpr CodecTraits kTraits = {.lossy = false, .keeps_nan = true, .keeps_infinity = true};

class Identity final : public Codec {
 public:
  const CodecTraits& traits() const override { return kTraits; }
  std::string spec() const override { return "identity"; }
  bool takes(Dtype) const override { return true; }
  size_t max_bytes(size_t count, Dtype dtype) const override { return count * size_of(dtype); }
  double bound(double, Dtype) const override { return 0; }

  size_t encode(const std::byte* in, size_t count, Dtype dtype, std::byte* out, CodecError* error,
                Losses) const override {
    if (error) *error = {};
    if (count) copy_bytes(out, in, count * size_of(dtype));
    return count * size_of(dtype);
  }

  void decode(const std::byte* in, size_t bytes, size_t count, Dtype dtype, std::byte* out) const override {
    check_size(bytes, count, dtype);
    if (count) copy_bytes(out, in, bytes);
  }

  void decode_add(const std::byte* in, size_t bytes, size_t count, Dtype dtype,
                  std::byte* accumulator) const override {
    check_size(bytes, count, dtype);
    switch (dtype) {
      case Dtype::float64:
        return add_plain<double>(in, count, accumulator);
      case Dtype::float32:
        return add_plain<float>(in, count, accumulator);
      case Dtype::float16:
      case Dtype::bfloat16:
        return add_halves(dtype, in, count, accumulator);
      case Dtype::int8:
      case Dtype::uint8:
        return add_plain<uint8_t>(in, count, accumulator);
      case Dtype::int16:
        return add_plain<uint16_t>(in, count, accumulator);
      case Dtype::int32:
        return add_plain<uint32_t>(in, count, accumulator);
      case Dtype::int64:
        return add_plain<uint64_t>(in, count, accumulator);
      case Dtype::boolean:
        return add_booleans(in, count, accumulator);
      default:
        fail(ErrorKind::unsupported_type, "elements of ", name_of(dtype), " are only moved, never added");
    }
  }

 private:
  static void check_size(size_t bytes, size_t count, Dtype dtype) {
    if (bytes != count * size_of(dtype))
      fail(ErrorKind::invalid_argument, "codec identity codes ", count, " elements of ", name_of(dtype),
           " in ", count * size_of(dtype), " bytes, got ", bytes);
  }
};

const Registry<CodecEntry>::Add identity{
    "identity",
    {"The elements as they are, of every dtype.", "identity", {"identity"}, without_argument<Identity>}};

}  // namespace
}  // namespace gpucomm
