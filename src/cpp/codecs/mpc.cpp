// mpc:D: lossless. Each element, as an integer, less the one D places before; the bits of as many of them as
// a word has bits transposed, so that word j holds bit j of all; each such word xor the one before, which
// clears the copies of sign bits; words that are zero are left out. Wire: a byte, 1. Then per group of 32
// elements (64 of float64) a mask of the words that are there, and these. Where that is not shorter than the
// elements: a byte, 0, and the elements. Source: Yang, Mukka, Hesaaraki, Burtscher 2015, "MPC: A Massively
// Parallel Compression Algorithm for Scientific Data". Differs: xor where MPC subtracts a second time; a
// group has its own mask; elements that do not shrink go as they are.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/copy.h"
#include "codecs/blocks/transpose.h"
#include "codecs/codec.h"
#include "codecs/floats.h"
#include "codecs/levels.h"

namespace gpucomm {
namespace {

constexpr std::byte kRaw{0}, kCoded{1};
constexpr size_t kMostDistance = 32;

template <class Word>
constexpr size_t kGroup = 8 * sizeof(Word);

// Returns the bytes written, or 0 where they would be more than `room`.
template <class Word>
size_t encode_kernel(const std::byte* in, size_t count, size_t distance, std::byte* out, size_t room) {
  Word elements[kMostDistance + kGroup<Word>] = {}, words[kGroup<Word>], present[1 + kGroup<Word>];
  size_t written = 0;
  for (size_t begin = 0; begin < count; begin += kGroup<Word>) {
    Word* const here = elements + kMostDistance;
    const size_t some = count - begin < kGroup<Word> ? count - begin : kGroup<Word>;
    std::memcpy(here, in + begin * sizeof(Word), some * sizeof(Word));
    const Word* const before = here - distance;
    for (size_t i = 0; i < kGroup<Word>; ++i) words[i] = i < some ? here[i] - before[i] : 0;
    std::memcpy(elements, here + kGroup<Word> - kMostDistance, kMostDistance * sizeof(Word));
    blocks::transpose(words);
    size_t used = 1;
    Word mask = 0, last = 0;
    for (size_t i = 0; i < kGroup<Word>; ++i) {
      const Word word = words[i] ^ last;
      last = words[i];
      present[used] = word;
      used += word != 0;
      mask |= static_cast<Word>(word != 0) << i;
    }
    present[0] = mask;
    if (written + used * sizeof(Word) > room) return 0;
    std::memcpy(out + written, present, used * sizeof(Word));
    written += used * sizeof(Word);
  }
  return written;
}

// One group after the other.
template <class Word>
class Groups {
 public:
  Groups(const std::byte* in, size_t bytes, size_t distance) : in_(in), left_(bytes), distance_(distance) {}

  // The next group's elements; null where the bytes end too early.
  const Word* next() {
    Word mask;
    if (left_ < sizeof mask) return nullptr;
    std::memcpy(&mask, in_, sizeof mask);
    const size_t bytes = (1 + std::popcount(mask)) * sizeof(Word);
    if (left_ < bytes) return nullptr;
    Leveled<restore>::run(in_ + sizeof mask, mask, distance_, elements_);
    in_ += bytes, left_ -= bytes;
    return elements_ + kMostDistance;
  }
  bool done() const { return left_ == 0; }

 private:
  static void restore(const std::byte* in, Word mask, size_t distance, Word* elements) {
    Word words[kGroup<Word>], last = 0;
    for (size_t i = 0; i < kGroup<Word>; ++i) {
      Word word = 0;
      if (mask >> i & 1) std::memcpy(&word, in, sizeof word), in += sizeof word;
      words[i] = last ^= word;
    }
    blocks::transpose(words);
    std::memcpy(elements, elements + kGroup<Word>, kMostDistance * sizeof(Word));
    Word* const here = elements + kMostDistance;
    const Word* const before = here - distance;
    for (size_t i = 0; i < kGroup<Word>; ++i) here[i] = words[i] + before[i];
  }

  const std::byte* in_;
  size_t left_, distance_;
  Word elements_[kMostDistance + kGroup<Word>] = {};
};

void add_elements(Dtype dtype, const void* values, size_t count, std::byte* accumulator) {
  if (dtype == Dtype::float32)
    return add_floats(dtype, static_cast<const float*>(values), count, accumulator);
  for (size_t i = 0; i < count; ++i) {
    double sum, value;
    std::memcpy(&sum, accumulator + 8 * i, 8);
    std::memcpy(&value, static_cast<const double*>(values) + i, 8);
    sum += value;
    if (sum != sum) sum = std::numeric_limits<double>::quiet_NaN();
    std::memcpy(accumulator + 8 * i, &sum, 8);
  }
}

class Mpc final : public Codec {
 public:
  explicit Mpc(size_t distance)
      : distance_(distance), spec_(distance == 1 ? "mpc" : concat("mpc:", distance)) {}

  const CodecTraits& traits() const override {
    static constexpr CodecTraits traits = {.lossy = false,
                                           .additive = false,
                                           .fixed_size = false,
                                           .bound = Bound::exact,
                                           .block = 64,
                                           .needs_maximum = false,
                                           .keeps_nan = true,
                                           .keeps_infinity = true};
    return traits;
  }
  std::string spec() const override { return spec_; }
  bool takes(Dtype dtype) const override { return dtype == Dtype::float32 || dtype == Dtype::float64; }
  size_t max_bytes(size_t count, Dtype dtype) const override {
    return count ? 1 + count * size_of(dtype) : 0;
  }
  double bound(double, Dtype) const override { return 0; }

  size_t encode(const std::byte* in, size_t count, Dtype dtype, std::byte* out, CodecError* error,
                Losses) const override {
    check(dtype);
    if (error) *error = {};
    if (count == 0) return 0;
    const size_t plain = count * size_of(dtype);
    const auto run = dtype == Dtype::float32 ? Leveled<encode_kernel<uint32_t>>::run
                                             : Leveled<encode_kernel<uint64_t>>::run;
    const size_t coded = run(in, count, distance_, out + 1, plain - 1);
    out[0] = coded ? kCoded : kRaw;
    if (!coded) copy_bytes(out + 1, in, plain);
    return 1 + (coded ? coded : plain);
  }

  void decode(const std::byte* in, size_t bytes, size_t count, Dtype dtype, std::byte* out) const override {
    const size_t size = size_of(dtype);
    each(in, bytes, count, dtype, [&](const void* elements, size_t begin, size_t some) {
      copy_bytes(out + begin * size, elements, some * size);
    });
  }

  void decode_add(const std::byte* in, size_t bytes, size_t count, Dtype dtype,
                  std::byte* accumulator) const override {
    each(in, bytes, count, dtype, [&](const void* elements, size_t begin, size_t some) {
      add_elements(dtype, elements, some, accumulator + begin * size_of(dtype));
    });
  }

 private:
  void check(Dtype dtype) const {
    if (!takes(dtype))
      fail(ErrorKind::unsupported_type, "codec ", spec(), " takes float32 and float64, not ", name_of(dtype));
  }
  [[noreturn]] void damaged(size_t bytes, size_t count) const {
    fail(ErrorKind::invalid_argument, "the ", bytes, " bytes that codec ", spec(), " shall decode as ", count,
         " elements are damaged");
  }

  // Calls visit(elements, begin, count) for all elements, in aligned memory.
  template <class Visit>
  void each(const std::byte* in, size_t bytes, size_t count, Dtype dtype, const Visit& visit) const {
    check(dtype);
    if (bytes == 0 && count == 0) return;
    if (bytes == 0 || count == 0 || (in[0] != kRaw && in[0] != kCoded)) damaged(bytes, count);
    if (in[0] == kRaw) return each_raw(in, bytes, count, dtype, visit);
    if (dtype == Dtype::float32) return each_group<uint32_t>(in, bytes, count, visit);
    each_group<uint64_t>(in, bytes, count, visit);
  }

  template <class Visit>
  void each_raw(const std::byte* in, size_t bytes, size_t count, Dtype dtype, const Visit& visit) const {
    if (bytes != max_bytes(count, dtype)) damaged(bytes, count);
    constexpr size_t kRun = 512;
    alignas(double) std::byte elements[kRun * sizeof(double)];
    for (size_t begin = 0; begin < count; begin += kRun) {
      const size_t some = std::min(kRun, count - begin);
      copy_bytes(elements, in + 1 + begin * size_of(dtype), some * size_of(dtype));
      visit(elements, begin, some);
    }
  }

  template <class Word, class Visit>
  void each_group(const std::byte* in, size_t bytes, size_t count, const Visit& visit) const {
    Groups<Word> groups(in + 1, bytes - 1, distance_);
    for (size_t begin = 0; begin < count; begin += kGroup<Word>) {
      const Word* elements = groups.next();
      if (!elements) damaged(bytes, count);
      visit(elements, begin, std::min(kGroup<Word>, count - begin));
    }
    if (!groups.done()) damaged(bytes, count);
  }

  size_t distance_;
  std::string spec_;  // asked for in every call
};

std::shared_ptr<const Codec> make(std::string_view argument) {
  size_t distance = 1;
  if (!argument.empty()) {
    const char* const end = argument.data() + argument.size();
    const auto [read, error] = std::from_chars(argument.data(), end, distance);
    if (error != std::errc() || read != end || distance < 1 || distance > kMostDistance) return nullptr;
  }
  return std::make_shared<Mpc>(distance);
}

const Registry<CodecEntry>::Add registered{
    "mpc",
    {"Lossless: differences, their bits transposed, words of zeros left out; of variable size.",
     "mpc or mpc:D, where D, from 1 to 32, is how many places before the element its reference lies",
     {"mpc", "mpc:3"},
     make}};

}  // namespace
}  // namespace gpucomm
