// decode.cpp without libFuzzer, and with the same inputs in every run: "seeded STREAMS" feeds every decoder
// with so many streams, of its encoder, most of them damaged, and of any bytes. It names each codec before.
// Run by tests/test_fuzz.py.
#include <cmath>
#include <cstdio>
#include <random>

#include "base/simd.h"
#include "decode.cpp"

namespace {

using Random = std::mt19937;  // the same numbers everywhere, which is not so of distributions

// Of a lossy codec from float32, which its streams do not tell.
std::vector<uint8_t> encoded(const Codec& codec, size_t count, Dtype dtype, Random& random) {
  const Dtype kind = codec.traits().lossy ? Dtype::float32 : dtype;
  std::vector<float> elements(2 * count);  // room for any dtype
  const int scale = static_cast<int>(random() % 40);
  for (float& x : elements) x = std::ldexp(static_cast<float>(random() % 8192) - 4096.0f, -10 - scale);
  std::vector<uint8_t> stream(codec.max_bytes(count, kind));
  stream.resize(codec.encode(reinterpret_cast<const std::byte*>(elements.data()), count, kind,
                             reinterpret_cast<std::byte*>(stream.data())));
  return stream;
}

void spoil(std::vector<uint8_t>& stream, Random& random) {
  enum Way { kNot, kCut, kLess, kMore, kAnyBytes, kWays };  // else some bytes are others
  const size_t size = stream.size(), few = random() % 8 + 1, way = random() % (2 * kWays);
  if (way == kNot || size == 0) return;
  if (way == kCut) return stream.resize(random() % size);
  if (way == kLess) return stream.resize(size - std::min(size, few));
  if (way == kMore) return stream.resize(size + few);
  for (size_t i = 0; i < (way == kAnyBytes ? size : few); ++i)
    stream[way == kAnyBytes ? i : random() % size] = static_cast<uint8_t>(random());
}

void feed(const Codec& codec, size_t index, int streams) {
  const auto levels = simd_levels();
  Random random(1);
  for (int fed = 0; fed < streams;) {
    const auto head = random();
    std::vector<uint8_t> input = {static_cast<uint8_t>(index), static_cast<uint8_t>(head),
                                  static_cast<uint8_t>(head >> 8), static_cast<uint8_t>(head >> 16)};
    const auto dtype = static_cast<Dtype>(input[1] % 4);
    if (!codec.takes(dtype)) continue;
    auto stream = encoded(codec, input[2] * (input[3] % 8 + 1), dtype, random);
    spoil(stream, random);
    input.insert(input.end(), stream.begin(), stream.end());
    set_simd_level(levels[fed++ % levels.size()]);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
}

}  // namespace

int main(int, char** argv) {
  const auto codecs = make_codecs();
  size_t index = 0;
  for (const auto& [name, entry] : Registry<CodecEntry>::all()) {
    for (const std::string& spec : entry.examples) {
      std::puts(spec.c_str());
      std::fflush(stdout);
      feed(*codecs[index], index, std::atoi(argv[1]));
      ++index;
    }
  }
}
