// Dense elements of a tile, four to a lane: float32, and the 16-bit floats, which are widened on the way in
// and rounded once on the way out. The dtype is looked at while the program runs: the memory is slower.
#pragma once
#include "base/dtype.h"
#include "base/half.h"
#include "cuda/program.h"

namespace gpucomm::cuda {

enum class Kind : uint32_t { float32, float16, bfloat16 };

inline Kind kind_of(Dtype dtype) {
  if (dtype == Dtype::float16) return Kind::float16;
  return dtype == Dtype::bfloat16 ? Kind::bfloat16 : Kind::float32;
}

struct Dense {
  std::byte* at;
  size_t count;
  Kind kind;
  bool aligned;  // so that four elements can be loaded as one
};

GPUCOMM_BOTH inline size_t size_of(Kind kind) { return kind == Kind::float32 ? 4 : 2; }

inline Dense dense_of(Dtype dtype, const std::byte* at, size_t count) {
  const Kind kind = kind_of(dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(at) % (kPerLane * size_of(kind)) == 0;
  return {const_cast<std::byte*>(at), count, kind, aligned};
}

GPUCOMM_PROGRAM float canonical(float value) {
  return blocks::float_of(blocks::choose(value != value, 0x7fc00000, blocks::bits_of(value)));
}

GPUCOMM_PROGRAM float widen_half(Kind kind, uint32_t half) {
  const auto bits = static_cast<uint16_t>(half);
  return kind == Kind::float16 ? float16_to_float(bits) : bfloat16_to_float(bits);
}
GPUCOMM_PROGRAM uint32_t narrow_half(Kind kind, float value) {
  return kind == Kind::float16 ? float_to_float16(value) : float_to_bfloat16(value);
}

// Four elements as they lie in memory, halves in the first two words.
template <bool kFull>
GPUCOMM_PROGRAM Words4 fetch(const Dense& dense, size_t index) {
  Words4 raw = {};
  const std::byte* at = dense.at + index * size_of(dense.kind);
  if constexpr (kFull) {
    if (dense.kind == Kind::float32) return load<Words4>(at);
    const auto halves = load<Words2>(at);
    raw.at[0] = halves.at[0], raw.at[1] = halves.at[1];
  } else {
#pragma unroll
    for (unsigned i = 0; i < kPerLane; ++i) {
      if (index + i >= dense.count) break;
      if (dense.kind == Kind::float32)
        raw.at[i] = load<uint32_t>(at + 4 * i);
      else
        raw.at[i / 2] |= static_cast<uint32_t>(load<uint16_t>(at + 2 * i)) << (16 * (i % 2));
    }
  }
  return raw;
}

template <bool kFull>
GPUCOMM_PROGRAM void put(const Dense& dense, size_t index, const Words4& raw) {
  std::byte* at = dense.at + index * size_of(dense.kind);
  if constexpr (kFull) {
    if (dense.kind == Kind::float32) return store(at, raw);
    store(at, Words2{raw.at[0], raw.at[1]});
  } else {
#pragma unroll
    for (unsigned i = 0; i < kPerLane; ++i) {
      if (index + i >= dense.count) break;
      if (dense.kind == Kind::float32)
        store(at + 4 * i, raw.at[i]);
      else
        store(at + 2 * i, static_cast<uint16_t>(raw.at[i / 2] >> (16 * (i % 2))));
    }
  }
}

// NaN of any bits, for what only asks whether it is one: arithmetic, and the codecs' encode().
GPUCOMM_PROGRAM Four widen_any(Kind kind, const Words4& raw) {
  Four x;
  if (kind == Kind::float32) {
    for (unsigned i = 0; i < kPerLane; ++i) x.at[i] = blocks::float_of(raw.at[i]);
  } else {
    for (unsigned i = 0; i < kPerLane; ++i) x.at[i] = widen_half(kind, raw.at[i / 2] >> (16 * (i % 2)));
  }
  return x;
}
// NaN of float32 as it is, of halves canonical.
GPUCOMM_PROGRAM Four widen(Kind kind, const Words4& raw) {
  Four x = widen_any(kind, raw);
  if (kind != Kind::float32)
    for (float& value : x.at) value = canonical(value);
  return x;
}

// To nearest, ties to even; beyond the largest number, to Inf. NaN of float32 stays as it is, of halves it
// becomes canonical.
GPUCOMM_PROGRAM Words4 narrow(Kind kind, const Four& x) {
  Words4 raw = {};
  if (kind == Kind::float32) {
    for (unsigned i = 0; i < kPerLane; ++i) raw.at[i] = blocks::bits_of(x.at[i]);
  } else {
    for (unsigned i = 0; i < kPerLane; ++i) raw.at[i / 2] |= narrow_half(kind, x.at[i]) << (16 * (i % 2));
  }
  return raw;
}

// As saturate() of codecs/floats.h.
GPUCOMM_PROGRAM void saturate(Kind kind, Four& x, float stray) {
  if (kind == Kind::float32) return;
  const uint32_t largest = kind == Kind::float16 ? 0x477fe000 : 0x7f7f0000;
  const uint32_t most = blocks::bits_of(blocks::float_of(largest) + stray);
  for (float& value : x.at) {
    const uint32_t bits = blocks::bits_of(value), magnitude = bits & blocks::kMagnitudeBits;
    const bool beyond = magnitude > largest && magnitude <= most && magnitude < blocks::kInfinityBits;
    value = blocks::float_of(blocks::choose(beyond, largest | (bits & ~blocks::kMagnitudeBits), bits));
  }
}

// What arithmetic gave, every NaN canonical.
GPUCOMM_PROGRAM Words4 narrow_result(Kind kind, const Four& x) {
  if (kind != Kind::float32) return narrow(kind, x);
  Words4 raw;
  for (unsigned i = 0; i < kPerLane; ++i) raw.at[i] = blocks::bits_of(canonical(x.at[i]));
  return raw;
}

// What was decoded, added to what is there.
GPUCOMM_PROGRAM Four sum(Kind kind, const Words4& there, Four x) {
  const Four own = widen_any(kind, there);
  for (unsigned i = 0; i < kPerLane; ++i) x.at[i] += own.at[i];
  return x;
}
// Rounded to the kind, NaN of any bits.
GPUCOMM_PROGRAM Four rounded(Kind kind, const Four& x) { return widen_any(kind, narrow(kind, x)); }
GPUCOMM_PROGRAM Words4 divide(Kind kind, const Words4& raw, float divisor) {
  Four x = widen_any(kind, raw);
  for (float& value : x.at) value /= divisor;
  return narrow_result(kind, x);
}

}  // namespace gpucomm::cuda
