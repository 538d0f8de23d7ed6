// mpc:D: lossless. Each element, as an integer, less the one D places before; the bits of as many of them as
// a word has bits transposed, so that word j holds bit j of all; each such word xor the one before, which
// clears the copies of sign bits; words that are zero are left out. Elements are coded in rounds of 32 KiB,
// each as if there were nothing before it, so that rounds can be coded side by side. Wire: for every round
// but the first a uint64, the words before it. Then per round a mask for each group of 32 elements (64 of
// float64), which says what words are there, and these. Where that is not shorter than the elements: these as
// they are, which their size tells. Source: Yang, Mukka, Hesaaraki, Burtscher 2015, "MPC: A Massively
// Parallel Compression Algorithm for Scientific Data". Differs: xor where MPC subtracts a second time; masks
// of groups where it has one of all words; longer rounds; elements that do not shrink go as they are.
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
#include "codecs/mpc_layout.h"

namespace gpucomm {
namespace {

template <class Word>
constexpr size_t kGroup = MpcLayout<Word>::kGroup;
template <class Word>
constexpr size_t kRound = MpcLayout<Word>::kRound;

template <class Word>
size_t groups_of_round(size_t left) {
  return (std::min(left, kRound<Word>) + kGroup<Word> - 1) / kGroup<Word>;
}

// Codes a group, the elements before it in front of it; returns the mask.
template <class Word>
Word encode_group(const Word* elements, size_t some, size_t distance, Word* present) {
  Word words[kGroup<Word>], last = 0, mask = 0;
  const Word* const before = elements - distance;
  for (size_t i = 0; i < kGroup<Word>; ++i) words[i] = i < some ? elements[i] - before[i] : 0;
  blocks::transpose(words);
  size_t used = 0;
  for (size_t i = 0; i < kGroup<Word>; ++i) {
    const Word word = words[i] ^ last;
    last = words[i];
    present[used] = word;
    used += word != 0;
    mask |= static_cast<Word>(word != 0) << i;
  }
  return mask;
}

// Returns the bytes written, or 0 where they would not be less than the elements'.
template <class Word>
size_t encode_kernel(const std::byte* in, size_t count, size_t distance, std::byte* out) {
  Word elements[kMpcMostDistance + kGroup<Word>] = {}, present[kGroup<Word>];
  Word* const here = elements + kMpcMostDistance;
  const size_t table = MpcLayout<Word>::table(count), plain = count * sizeof(Word);
  size_t written = table, masks = 0;  // where the next ones come
  for (size_t begin = 0; begin < count; begin += kGroup<Word>) {
    if (begin % kRound<Word> == 0) {
      const uint64_t before = (written - table) / sizeof(Word);
      if (begin) std::memcpy(out + MpcLayout<Word>::table(begin), &before, sizeof before);
      std::memset(elements, 0, kMpcMostDistance * sizeof(Word));
      masks = written, written += groups_of_round<Word>(count - begin) * sizeof(Word);
    }
    const size_t some = std::min(count - begin, kGroup<Word>);
    std::memcpy(here, in + begin * sizeof(Word), some * sizeof(Word));
    const Word mask = encode_group(here, some, distance, present);
    const size_t bytes = std::popcount(mask) * sizeof(Word);
    if (written + bytes >= plain) return 0;
    std::memcpy(out + masks, &mask, sizeof mask);
    std::memcpy(out + written, present, bytes);
    masks += sizeof mask, written += bytes;
    std::memcpy(elements, here + kGroup<Word> - kMpcMostDistance, kMpcMostDistance * sizeof(Word));
  }
  return written;
}

// One group after the other, of a message that is shorter than its elements.
template <class Word>
class Groups {
 public:
  Groups(const std::byte* in, size_t bytes, size_t count, size_t distance)
      : table_(in), in_(in), left_(bytes), count_(count), distance_(distance) {
    take(MpcLayout<Word>::table(count));
  }

  // The elements of the group that begins with this one; null where the message is damaged.
  const Word* at(size_t begin) {
    if (begin % kRound<Word> == 0) start_round(begin);
    if (damaged_) return nullptr;
    Word mask;
    std::memcpy(&mask, masks_, sizeof mask);
    masks_ += sizeof mask;
    const std::byte* const words = in_;
    if (!take(std::popcount(mask) * sizeof(Word))) return nullptr;
    Leveled<restore>::run(words, mask, distance_, elements_);
    return elements_ + kMpcMostDistance;
  }
  bool done() const { return !damaged_ && left_ == 0; }

 private:
  bool take(size_t bytes) {
    damaged_ |= bytes > left_;
    if (!damaged_) in_ += bytes, left_ -= bytes;
    return !damaged_;
  }

  void start_round(size_t begin) {
    if (damaged_) return;
    masks_ = in_;
    if (begin) {
      uint64_t before;
      std::memcpy(&before, table_ + MpcLayout<Word>::table(begin), sizeof before);
      const auto bytes = static_cast<size_t>(in_ - table_) - MpcLayout<Word>::table(count_);
      damaged_ = before != bytes / sizeof(Word);
    }
    take(groups_of_round<Word>(count_ - begin) * sizeof(Word));
    std::memset(elements_, 0, sizeof elements_);
  }

  static void restore(const std::byte* in, Word mask, size_t distance, Word* elements) {
    Word words[kGroup<Word>], last = 0;
    for (size_t i = 0; i < kGroup<Word>; ++i) {
      Word word = 0;
      if (mask >> i & 1) std::memcpy(&word, in, sizeof word), in += sizeof word;
      words[i] = last ^= word;
    }
    blocks::transpose(words);
    std::memcpy(elements, elements + kGroup<Word>, kMpcMostDistance * sizeof(Word));
    Word* const here = elements + kMpcMostDistance;
    const Word* const before = here - distance;
    for (size_t i = 0; i < kGroup<Word>; ++i) here[i] = words[i] + before[i];
  }

  const std::byte *table_, *in_, *masks_ = nullptr;
  size_t left_, count_, distance_;
  bool damaged_ = false;
  Word elements_[kMpcMostDistance + kGroup<Word>] = {};
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
    static constexpr CodecTraits traits = {
        .lossy = false, .fixed_size = false, .block = 64, .keeps_nan = true, .keeps_infinity = true};
    return traits;
  }
  std::string spec() const override { return spec_; }
  bool takes(Dtype dtype) const override { return dtype == Dtype::float32 || dtype == Dtype::float64; }
  size_t max_bytes(size_t count, Dtype dtype) const override { return count * size_of(dtype); }
  double bound(double, Dtype) const override { return 0; }

  size_t encode(const std::byte* in, size_t count, Dtype dtype, std::byte* out, CodecError* error,
                Losses) const override {
    check(dtype);
    if (error) *error = {};
    if (count == 0) return 0;
    const auto run = dtype == Dtype::float32 ? Leveled<encode_kernel<uint32_t>>::run
                                             : Leveled<encode_kernel<uint64_t>>::run;
    if (const size_t coded = run(in, count, distance_, out)) return coded;
    copy_bytes(out, in, count * size_of(dtype));
    return count * size_of(dtype);
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
    const size_t plain = count * size_of(dtype);
    if (bytes > plain) damaged(bytes, count);
    if (bytes == plain) return each_raw(in, count, dtype, visit);
    if (dtype == Dtype::float32) return each_group<uint32_t>(in, bytes, count, visit);
    each_group<uint64_t>(in, bytes, count, visit);
  }

  template <class Visit>
  void each_raw(const std::byte* in, size_t count, Dtype dtype, const Visit& visit) const {
    constexpr size_t kRun = 512;
    alignas(double) std::byte elements[kRun * sizeof(double)];
    for (size_t begin = 0; begin < count; begin += kRun) {
      const size_t some = std::min(kRun, count - begin);
      copy_bytes(elements, in + begin * size_of(dtype), some * size_of(dtype));
      visit(elements, begin, some);
    }
  }

  template <class Word, class Visit>
  void each_group(const std::byte* in, size_t bytes, size_t count, const Visit& visit) const {
    Groups<Word> groups(in, bytes, count, distance_);
    for (size_t begin = 0; begin < count; begin += kGroup<Word>) {
      const Word* elements = groups.at(begin);
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
    if (error != std::errc() || read != end || distance < 1 || distance > kMpcMostDistance) return nullptr;
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
