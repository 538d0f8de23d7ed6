// Dense elements of a tile, four to a lane: float32, and the 16-bit floats, which are widened on the way in
// and rounded once on the way out. Kernels know the kind when they are compiled, other programs look at it.
#pragma once
#include "cuda/kinds.h"

namespace gpucomm::cuda {

struct Dense {
  std::byte* at;
  size_t count;
  Kind kind;
  bool aligned;  // so that four elements can be loaded as one
};

inline Dense dense_of(Dtype dtype, const std::byte* at, size_t count) {
  const Kind kind = kind_of(dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(at) % (kPerLane * size_of(kind)) == 0;
  return {const_cast<std::byte*>(at), count, kind, aligned};
}

// How a lane comes to its four elements: all as one, which must be aligned; one by one; or, one by one, to
// those of them that are there.
enum class Access { as_one, each, some };

GPUCOMM_PROGRAM float canonical(float value) {
  return blocks::float_of(blocks::choose(value != value, 0x7fc00000, blocks::bits_of(value)));
}

// Four elements as they lie in memory, halves in the first two words.
template <Access kAccess>
GPUCOMM_PROGRAM Words4 fetch(const Dense& dense, size_t index) {
  Words4 raw = {};
  const std::byte* at = dense.at + index * size_of(dense.kind);
  if constexpr (kAccess == Access::as_one) {
    if (dense.kind == Kind::float32) return load<Words4>(at);
    const auto halves = load<Words2>(at);
    raw.at[0] = halves.at[0], raw.at[1] = halves.at[1];
  } else {
#pragma unroll
    for (unsigned i = 0; i < kPerLane; ++i) {
      if (kAccess == Access::some && index + i >= dense.count) continue;
      if (dense.kind == Kind::float32)
        raw.at[i] = load<uint32_t>(at + 4 * i);
      else
        raw.at[i / 2] |= static_cast<uint32_t>(load<uint16_t>(at + 2 * i)) << (16 * (i % 2));
    }
  }
  return raw;
}

template <Access kAccess>
GPUCOMM_PROGRAM void put(const Dense& dense, size_t index, const Words4& raw) {
  std::byte* at = dense.at + index * size_of(dense.kind);
  if constexpr (kAccess == Access::as_one) {
    if (dense.kind == Kind::float32) return store(at, raw);
    store(at, Words2{raw.at[0], raw.at[1]});
  } else {
#pragma unroll
    for (unsigned i = 0; i < kPerLane; ++i) {
      if (kAccess == Access::some && index + i >= dense.count) continue;
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
  if (kind == Kind::float32) return x;
  for (float& value : x.at) value = canonical(value);  // the GPU's own conversion gives another NaN
  return x;
}

// Rounded as narrow_two_any() does it, NaN of any bits.
GPUCOMM_PROGRAM Words4 narrow_any(Kind kind, const Four& x) {
  if (kind != Kind::float32)
    return {narrow_two_any(kind, x.at[0], x.at[1]), narrow_two_any(kind, x.at[2], x.at[3]), 0, 0};
  Words4 raw;
  for (unsigned i = 0; i < kPerLane; ++i) raw.at[i] = blocks::bits_of(x.at[i]);
  return raw;
}
// NaN of float32 stays as it is, of halves it becomes canonical.
GPUCOMM_PROGRAM Words4 narrow(Kind kind, const Four& x) {
  const Words4 raw = narrow_any(kind, x);
  if (kind == Kind::float32) return raw;
  return {canonical_two(kind, raw.at[0]), canonical_two(kind, raw.at[1]), 0, 0};
}

GPUCOMM_PROGRAM uint32_t largest_of(Kind kind) { return kind == Kind::float16 ? 0x477fe000 : 0x7f7f0000; }

// Whether saturate() may change any.
GPUCOMM_PROGRAM bool beyond_largest(Kind kind, const Four& x) {
  bool found = false;
  for (float value : x.at) found |= __builtin_fabsf(value) > blocks::float_of(largest_of(kind));
  return found;
}

// Of halves, as saturate() of codecs/floats.h.
GPUCOMM_PROGRAM void saturate(Kind kind, Four& x, float stray) {
  const uint32_t largest = largest_of(kind);
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
GPUCOMM_PROGRAM Four rounded(Kind kind, const Four& x) { return widen_any(kind, narrow_any(kind, x)); }
GPUCOMM_PROGRAM Words4 divide(Kind kind, const Words4& raw, float divisor) {
  Four x = widen_any(kind, raw);
  for (float& value : x.at) value /= divisor;
  return narrow_result(kind, x);
}

}  // namespace gpucomm::cuda
