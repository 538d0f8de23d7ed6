#include "codecs/coding.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "codecs/floats.h"

namespace gpucomm {
namespace {

constexpr size_t kBytes = 256 << 10;
// Longer than a scheduler's turns: where threads share a core it shows.
constexpr double kWindow = 0.01;

template <class Call>
double mean_seconds(Call call) {
  using Clock = std::chrono::steady_clock;
  call();  // touches the memory
  const auto start = Clock::now();
  double spent = 0;
  int calls = 0;
  for (; spent < kWindow; ++calls, spent = std::chrono::duration<double>(Clock::now() - start).count())
    call();
  return spent / calls;
}

}  // namespace

void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count) {
  constexpr size_t kRun = 1024;
  float before[kRun], after[kRun];
  for (size_t begin = 0, item = size_of(dtype); begin < count; begin += kRun) {
    const size_t n = std::min(kRun, count - begin);
    widen(dtype, dense + begin * item, n, before), widen(dtype, error + begin * item, n, after);
    subtract_floats(dtype, before, after, times, n);
    narrow(dtype, after, n, error + begin * item);
  }
}

std::array<double, 2> time_coding(const Codec& codec, Dtype dtype) {
  const size_t count = kBytes / size_of(dtype);
  std::vector<std::byte> dense(kBytes), slot(kCodedHeader + codec.max_bytes(count, dtype));
  // Bytes 0x30 to 0x3f: in every dtype ordinary numbers of many sizes. What has agreed on a largest magnitude
  // may not take them, and is as fast with zeros.
  const bool agreed = codec.traits().bound == Bound::absolute;
  for (size_t i = 0; i < kBytes && !agreed; ++i)
    dense[i] = static_cast<std::byte>(0x30 + (i * 7 + i / 64) % 16);
  const PieceCoding coding{codec, dtype, count, slot.size() - kCodedHeader};
  const double encode = mean_seconds([&] { coding.encode(dense.data(), slot.data()); });
  const double decode = mean_seconds([&] { coding.decode(slot.data(), dense.data(), false); });
  return {encode / kBytes, decode / kBytes};
}

}  // namespace gpucomm
