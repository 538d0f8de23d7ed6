// The SIMD levels, which one is in use, and the way from (dtype, op) to a kernel.
#include "reduce/reduce.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "base/env.h"
#include "base/error.h"
#include "reduce/half.h"

namespace gpucomm {
namespace {

using Kernel = void (*)(void* destination, const void* const* sources, int source_count, size_t count,
                        int divisor);
using KernelRow = std::array<Kernel, kOps>;
using KernelTable = std::array<KernelRow, kReducibleDtypes>;

template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();  // positive, payload zero

}  // namespace
}  // namespace gpucomm

// Clang knows no such pragma: it builds the first level only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GPUCOMM_X86_LEVELS 1
#include <immintrin.h>
#endif

#define GPUCOMM_LEVEL baseline
#include "reduce/kernels.inc"
#undef GPUCOMM_LEVEL

#ifdef GPUCOMM_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define GPUCOMM_LEVEL x86_64_v3
#define GPUCOMM_F16C_LANES 8
#include "reduce/kernels.inc"
#undef GPUCOMM_F16C_LANES
#undef GPUCOMM_LEVEL
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define GPUCOMM_LEVEL x86_64_v4
#define GPUCOMM_F16C_LANES 16
#include "reduce/kernels.inc"
#undef GPUCOMM_F16C_LANES
#undef GPUCOMM_LEVEL
#pragma GCC pop_options
#endif

namespace gpucomm {
namespace {

struct Level {
  std::string_view name;
  const KernelTable* kernels;
};

#ifdef GPUCOMM_X86_LEVELS
#define GPUCOMM_HAS(feature) __builtin_cpu_supports(feature)
bool runs_v3() {
  return GPUCOMM_HAS("avx2") && GPUCOMM_HAS("bmi") && GPUCOMM_HAS("bmi2") && GPUCOMM_HAS("f16c") &&
         GPUCOMM_HAS("fma") && GPUCOMM_HAS("lzcnt") && GPUCOMM_HAS("movbe");
}

bool runs_v4() {
  return runs_v3() && GPUCOMM_HAS("avx512f") && GPUCOMM_HAS("avx512bw") && GPUCOMM_HAS("avx512cd") &&
         GPUCOMM_HAS("avx512dq") && GPUCOMM_HAS("avx512vl");
}
#undef GPUCOMM_HAS
#endif

// In ascending order.
std::vector<Level> usable_levels() {
#ifdef GPUCOMM_X86_LEVELS
  std::vector<Level> levels = {{"v1", &baseline::kKernels}};
  __builtin_cpu_init();
  if (!runs_v3()) return levels;
  levels.push_back({"v3", &x86_64_v3::kKernels});
  if (runs_v4()) levels.push_back({"v4", &x86_64_v4::kKernels});
  return levels;
#else
  return {{"generic", &baseline::kKernels}};
#endif
}

const std::vector<Level>& levels() {
  static const std::vector<Level> usable = usable_levels();
  return usable;
}

int find_level(std::string_view name) {
  std::string known;
  for (size_t i = 0; i < levels().size(); ++i) {
    if (levels()[i].name == name) return static_cast<int>(i);
    known += (i ? ", " : "") + std::string(levels()[i].name);
  }
  fail(ErrorKind::invalid_argument, "SIMD level '", name,
       "' is unknown or more than this CPU can run; known: ", known,
       " (the variable GPUCOMM_SIMD takes the same names)");
}

int first_level() {
  const std::string& wanted = env().simd;
  return wanted.empty() ? static_cast<int>(levels().size()) - 1 : find_level(wanted);
}

// An index into levels(). Chosen on first use: a wrong GPUCOMM_SIMD is then an error, not a failed import.
std::atomic<int>& current_level() {
  static std::atomic<int> level = first_level();
  return level;
}

Kernel find_kernel(Dtype dtype, Op op, int divisor) {
  GPUCOMM_CHECK(divisor <= 1 || dtype == Dtype::boolean || op == Op::sum || op == Op::mean);
  if (op == Op::sum || op == Op::mean || op == Op::premul_sum) op = divisor > 1 ? Op::mean : Op::sum;
  const Level& level = levels()[current_level().load(std::memory_order_relaxed)];
  const Kernel kernel = (*level.kernels)[static_cast<int>(dtype)][static_cast<int>(op)];
  GPUCOMM_CHECK(kernel);  // null: bitwise operations on floats
  return kernel;
}

}  // namespace

void reduce(Dtype dtype, Op op, void* destination, const void* const* sources, int source_count, size_t count,
            int divisor) {
  GPUCOMM_CHECK(reducible(dtype) && source_count >= 1);
  if (count == 0) return;
  const bool divides = divisor > 1 && dtype != Dtype::boolean;
  if (source_count == 1 && !divides) {
    if (destination != sources[0]) std::memmove(destination, sources[0], count * size_of(dtype));
    return;
  }
  find_kernel(dtype, op, divisor)(destination, sources, source_count, count, divisor);
}

std::string_view simd_level() { return levels()[current_level().load(std::memory_order_relaxed)].name; }

std::vector<std::string_view> simd_levels() {
  std::vector<std::string_view> names;
  for (const Level& level : levels()) names.push_back(level.name);
  return names;
}

void set_simd_level(std::string_view level) {
  current_level().store(find_level(level), std::memory_order_relaxed);
}

}  // namespace gpucomm
