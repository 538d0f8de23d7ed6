// Element types. The first ten can be reduced; the others are only moved.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpucomm {

// Arrays, coded bytes and what processes tell each other are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little);

enum class Dtype : uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  int8,
  int16,
  int32,
  int64,
  uint8,
  boolean,
  uint16,
  uint32,
  uint64,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e5m2,
};
inline constexpr int kReducibleDtypes = 10;
inline constexpr int kDtypes = 17;

struct DtypeInfo {
  std::string_view name;
  uint8_t size_bytes;
};

inline constexpr DtypeInfo kDtypeInfo[kDtypes] = {
    {"float64", 8},       {"float32", 4},     {"float16", 2}, {"bfloat16", 2},  {"int8", 1},
    {"int16", 2},         {"int32", 4},       {"int64", 8},   {"uint8", 1},     {"bool", 1},
    {"uint16", 2},        {"uint32", 4},      {"uint64", 8},  {"complex64", 8}, {"complex128", 16},
    {"float8_e4m3fn", 1}, {"float8_e5m2", 1},
};

inline constexpr size_t size_of(Dtype dtype) { return kDtypeInfo[static_cast<int>(dtype)].size_bytes; }
inline constexpr std::string_view name_of(Dtype dtype) { return kDtypeInfo[static_cast<int>(dtype)].name; }
inline constexpr bool reducible(Dtype dtype) { return static_cast<int>(dtype) < kReducibleDtypes; }

// Sums, products and bits of these unsigned integers are those of signed ones; others as they are.
inline constexpr Dtype folded_as(Dtype dtype) {
  if (dtype == Dtype::uint16) return Dtype::int16;
  if (dtype == Dtype::uint32) return Dtype::int32;
  return dtype == Dtype::uint64 ? Dtype::int64 : dtype;
}

inline constexpr bool is_float(Dtype dtype) { return dtype <= Dtype::bfloat16; }  // of the reducible ones

// premul_sum: a sum of contributions that each rank has multiplied by a factor of its own before.
enum class Op : uint8_t { sum, mean, min, max, prod, band, bor, bxor, premul_sum };
inline constexpr int kOps = 9;
inline constexpr std::string_view kOpNames[kOps] = {"sum",  "mean", "min",  "max",       "prod",
                                                    "band", "bor",  "bxor", "premul_sum"};
inline constexpr std::string_view name_of(Op op) { return kOpNames[static_cast<int>(op)]; }
inline constexpr bool bitwise(Op op) { return op == Op::band || op == Op::bor || op == Op::bxor; }

}  // namespace gpucomm
