#include "codecs/float_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/aligned.h"
#include "base/copy.h"
#include "codecs/blocks/portable.h"
#include "codecs/floats.h"
#include "codecs/levels.h"

namespace gpucomm {

// Every eighth element has sums of its own: the same bits at every SIMD level.
constexpr size_t kSums = 8;
using Eight = double __attribute__((vector_size(kSums * sizeof(double))));
struct FloatCodec::Sums {
  Eight max_abs = {}, sum_sq = {};
};

namespace {

// Whether elements there are floats as they lie.
bool are_floats(Dtype dtype, const std::byte* pointer) {
  return dtype == Dtype::float32 && reinterpret_cast<uintptr_t>(pointer) % alignof(float) == 0;
}

// Into the cache, while something else is computed: runs are too short for the processor to foresee the next.
void fetch(const std::byte* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(memory + i, 0, 2);
}

// What `given` became, against what it was; NaN and Inf do not count. `count` is a multiple of kSums, up to
// kMost.
template <size_t kMost, class Sums>
void measure_kernel(const float* given, const float* became, size_t count, Sums& sums) {
  double differences[kMost];
  for (size_t i = 0; i < count; ++i) {
    const uint32_t was = blocks::bits_of(given[i]), is = blocks::bits_of(became[i]);
    const bool counts = (was & blocks::kMagnitudeBits) < blocks::kInfinityBits;
    const double known = blocks::float_of(blocks::choose(counts, was, 0));
    differences[i] = __builtin_fabs(blocks::float_of(blocks::choose(counts, is, 0)) - known);
  }
  Sums own = sums;
  for (size_t i = 0; i < count; i += kSums) {
    Eight some;
    std::memcpy(&some, differences + i, sizeof some);
    own.max_abs = some > own.max_abs ? some : own.max_abs;
    own.sum_sq += some * some;
  }
  sums = own;
}

template <class Sums>
CodecError total(const Sums& sums) {
  CodecError error;
  for (size_t i = 0; i < kSums; ++i) {
    error.max_abs = std::max(error.max_abs, sums.max_abs[i]);
    error.sum_sq += sums.sum_sq[i];
  }
  return error;
}

}  // namespace

bool FloatCodec::takes(Dtype dtype) const { return is_float_up_to_32(dtype); }

size_t FloatCodec::encode(const std::byte* in, size_t count, Dtype dtype, std::byte* out, CodecError* error,
                          Losses losses) const {
  check(dtype);
  const auto* floats = reinterpret_cast<const float*>(in);
  if (are_floats(dtype, in) && !error && !losses.elements) {
    const size_t done = encode_run(floats, {0, count, count}, out);
    if (done < count) refuse(floats + done, done, count - done);
    return coded_bytes(count);
  }
  float given[kRun];
  Sums sums;
  for (size_t begin = 0; begin < count; begin += kRun) {
    const Run run = {begin, std::min(kRun, count - begin), count};
    widen(dtype, in + begin * size_of(dtype), run.count, given);
    const size_t done = encode_run(given, run, out);
    if (done < run.count) refuse(given + done, begin + done, run.count - done);
    if (losses.elements) tell(given, run, dtype, out, losses);
    if (error) measure(given, run, dtype, out, sums);
  }
  if (error) *error = total(sums);
  return coded_bytes(count);
}

void FloatCodec::decode(const std::byte* in, size_t bytes, size_t count, Dtype dtype, std::byte* out) const {
  check(dtype);
  check_size(bytes, count);
  if (are_floats(dtype, out)) return decode_checked(in, {0, count, count}, reinterpret_cast<float*>(out));
  float values[kRun];
  for (size_t begin = 0; begin < count; begin += kRun) {
    const Run run = {begin, std::min(kRun, count - begin), count};
    decode_checked(in, run, values);
    if (dtype != Dtype::float32) saturate(dtype, values, run.count, stray());
    narrow(dtype, values, run.count, out + begin * size_of(dtype));
  }
}

void FloatCodec::decode_add(const std::byte* in, size_t bytes, size_t count, Dtype dtype,
                            std::byte* accumulator) const {
  check(dtype);
  check_size(bytes, count);
  float values[kRun];
  for (size_t begin = 0; begin < count; begin += kRun) {
    const Run run = {begin, std::min(kRun, count - begin), count};
    decode_checked(in, run, values);
    add_floats(dtype, values, run.count, accumulator + begin * size_of(dtype));
  }
}

void FloatCodec::decode_onto(const std::byte* in, size_t bytes, const std::byte* own, size_t count,
                             Dtype dtype, std::byte* out) const {
  if (!are_floats(dtype, own) || !are_floats(dtype, out))
    return Codec::decode_onto(in, bytes, own, count, dtype, out);
  check(dtype);
  check_size(bytes, count);
  for (size_t begin = 0; begin < count; begin += kRun) {
    const Run run = {begin, std::min(kRun, count - begin), count};
    std::byte* const sums = out + begin * sizeof(float);
    fetch(own + begin * sizeof(float), run.count * sizeof(float));
    decode_checked(in, run, reinterpret_cast<float*>(sums));
    add_floats(dtype, reinterpret_cast<const float*>(own) + begin, run.count, sums);
  }
}

bool FloatCodec::decode_add_encode(const std::byte* in, size_t bytes, const std::byte* own, size_t count,
                                   Dtype dtype, std::byte* out, Losses losses) const {
  check(dtype);
  check_size(bytes, count);
  const size_t item = size_of(dtype);
  const auto* own_floats = reinterpret_cast<const float*>(own);
  float values[kRun];
  std::byte sums[kRun * sizeof(float)];
  for (size_t begin = 0; begin < count; begin += kRun) {
    const Run run = {begin, std::min(kRun, count - begin), count};
    const std::byte* next = own + (begin + run.count) * item;
    const size_t third = std::min(kRun, count - begin - run.count) * item / 3;
    fetch(next, third);
    decode_checked(in, run, values);
    fetch(next + third, third);
    if (are_floats(dtype, own)) {
      add_floats(dtype, own_floats + begin, run.count, reinterpret_cast<std::byte*>(values));
    } else {
      copy_bytes(sums, own + begin * item, run.count * item);
      add_floats(dtype, values, run.count, sums);
      widen(dtype, sums, run.count, values);
    }
    fetch(next + 2 * third, third);
    const size_t done = encode_run(values, run, out);
    if (done < run.count) refuse(values + done, begin + done, run.count - done);
    if (losses.elements) tell(values, run, dtype, out, losses);
  }
  return true;
}

double FloatCodec::bound(double block_max, Dtype dtype) const {
  if (block_max > largest(dtype)) return std::numeric_limits<double>::infinity();
  const double in_float32 = lost(block_max);
  return in_float32 + rounding(dtype, block_max + in_float32);
}

const char* FloatCodec::refusal(float value) const {
  if (std::isnan(value) && !traits().keeps_nan) return "it has no code for NaN";
  return std::isinf(value) && !traits().keeps_infinity ? "it has no code for Inf" : nullptr;
}

void FloatCodec::check(Dtype dtype) const {
  if (!takes(dtype))
    fail(ErrorKind::unsupported_type, "codec ", spec(), " takes float32, float16 and bfloat16, not ",
         name_of(dtype));
  if (traits().needs_maximum)
    fail(ErrorKind::invalid_argument, "codec ", spec(),
         " must agree on the largest magnitude before it can code");
}

void FloatCodec::check_size(size_t bytes, size_t count) const {
  if (bytes != coded_bytes(count))
    fail(ErrorKind::invalid_argument, "codec ", spec(), " codes ", count, " elements in ", coded_bytes(count),
         " bytes, got ", bytes);
}

void FloatCodec::decode_checked(const std::byte* in, Run run, float* out) const {
  const size_t done = decode_run(in, run, out);
  if (done < run.count)
    fail(ErrorKind::invalid_argument, "the bytes that codec ", spec(),
         " shall decode are damaged near element ", run.begin + done);
}

void FloatCodec::decode_rounded(const std::byte* in, Run run, Dtype dtype, float* out) const {
  decode_checked(in, run, out);
  if (dtype == Dtype::float32) return;
  std::byte rounded[kRun * 2];
  saturate(dtype, out, run.count, stray());
  narrow(dtype, out, run.count, rounded);
  widen(dtype, rounded, run.count, out);
}

void FloatCodec::tell(const float* given, Run run, Dtype dtype, const std::byte* coded, Losses losses) const {
  float became[kRun];
  decode_rounded(coded, run, dtype, became);
  subtract_floats(dtype, given, became, losses.times, run.count);
  narrow(dtype, became, run.count, losses.elements + run.begin * size_of(dtype));
}

void FloatCodec::measure(float* given, Run run, Dtype dtype, const std::byte* coded, Sums& sums) const {
  float became[kRun];
  decode_rounded(coded, run, dtype, became);
  for (size_t i = run.count; i % kSums; ++i) given[i] = became[i] = 0;
  Leveled<measure_kernel<kRun, Sums>>::run(given, became, round_up(run.count, kSums), sums);
}

void FloatCodec::refuse(const float* in, size_t begin, size_t count) const {
  for (size_t i = 0; i < count; ++i)
    if (const char* reason = refusal(in[i])) throw RefusedElement(spec(), begin + i, in[i], reason);
  GPUCOMM_CHECK(false);
}

}  // namespace gpucomm
