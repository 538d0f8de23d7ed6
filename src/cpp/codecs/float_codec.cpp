#include "codecs/float_codec.h"

#include <algorithm>
#include <cmath>

#include "codecs/floats.h"

namespace gpucomm {
namespace {

bool aligned(const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer) % alignof(float) == 0; }

// What decoding gives of `lost`, against `given`.
void measure(const float* given, const float* lost, size_t count, CodecError& error) {
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(given[i])) continue;
    const double difference = std::abs(static_cast<double>(lost[i]) - given[i]);
    error.max_abs = std::max(error.max_abs, difference);
    error.sum_sq += difference * difference;
  }
}

}  // namespace

bool FloatCodec::takes(Dtype dtype) const { return is_float_up_to_32(dtype); }

size_t FloatCodec::encode(const std::byte* in, size_t count, Dtype dtype, std::byte* out,
                          CodecError* error) const {
  check(dtype);
  const auto* floats = reinterpret_cast<const float*>(in);
  if (dtype == Dtype::float32 && aligned(in) && !error) {
    const size_t done = encode_run(floats, {0, count, count}, out);
    if (done < count) refuse(floats + done, done, count - done);
    return coded_bytes(count);
  }
  float given[kRun], lost[kRun];
  if (error) *error = {};
  for (size_t begin = 0; begin < count; begin += kRun) {
    const Run run = {begin, std::min(kRun, count - begin), count};
    widen(dtype, in + begin * size_of(dtype), run.count, given);
    const size_t done = encode_run(given, run, out);
    if (done < run.count) refuse(given + done, begin + done, run.count - done);
    if (!error) continue;
    decode_checked(out, run, lost);
    std::byte rounded[kRun * sizeof(float)];
    saturate(dtype, lost, run.count);
    narrow(dtype, lost, run.count, rounded);
    widen(dtype, rounded, run.count, lost);
    measure(given, lost, run.count, *error);
  }
  return coded_bytes(count);
}

void FloatCodec::decode(const std::byte* in, size_t bytes, size_t count, Dtype dtype, std::byte* out) const {
  check(dtype);
  check_size(bytes, count);
  if (dtype == Dtype::float32 && aligned(out))
    return decode_checked(in, {0, count, count}, reinterpret_cast<float*>(out));
  float values[kRun];
  for (size_t begin = 0; begin < count; begin += kRun) {
    const Run run = {begin, std::min(kRun, count - begin), count};
    decode_checked(in, run, values);
    if (dtype != Dtype::float32) saturate(dtype, values, run.count);
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

double FloatCodec::bound(double block_max, Dtype dtype) const {
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

void FloatCodec::refuse(const float* in, size_t begin, size_t count) const {
  for (size_t i = 0; i < count; ++i)
    if (const char* reason = refusal(in[i]))
      fail(ErrorKind::invalid_argument, "codec ", spec(), " cannot carry element ", begin + i, ", which is ",
           in[i], ": ", reason);
  GPUCOMM_CHECK(false);
}

}  // namespace gpucomm
