#include "engine/coding.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

namespace gpucomm {
namespace {

constexpr size_t kBytes = 256 << 10;
constexpr int kTries = 5;

template <class Call>
double least_seconds(Call call) {
  using Clock = std::chrono::steady_clock;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const auto start = Clock::now();
    call();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return least;
}

}  // namespace

std::array<double, 2> time_coding(const Codec& codec, Dtype dtype) {
  const size_t count = kBytes / size_of(dtype);
  std::vector<std::byte> dense(kBytes), slot(kCodedHeader + codec.max_bytes(count, dtype));
  // Bytes 0x30 to 0x3f: in every dtype ordinary numbers of many sizes.
  for (size_t i = 0; i < kBytes; ++i) dense[i] = static_cast<std::byte>(0x30 + (i * 7 + i / 64) % 16);
  const PieceCoding coding{codec, dtype, count, slot.size() - kCodedHeader};
  const double encode = least_seconds([&] { coding.encode(dense.data(), slot.data()); });
  const double decode = least_seconds([&] { coding.decode(slot.data(), dense.data(), false); });
  return {encode / kBytes, decode / kBytes};
}

}  // namespace gpucomm
