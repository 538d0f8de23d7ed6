// The kernels of every SIMD level, and the way from (dtype, op) to one of them.
#include "reduce/reduce.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/half.h"
#include "base/simd.h"

namespace gpucomm {
namespace {

using Kernel = void (*)(void* destination, void* twin, const void* const* sources, int source_count,
                        size_t count, int divisor);
using KernelRow = std::array<Kernel, kOps>;
using KernelTable = std::array<KernelRow, kReducibleDtypes>;

}  // namespace
}  // namespace gpucomm

#ifdef GPUCOMM_X86_LEVELS
#include <immintrin.h>
#endif
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"  // some of these loops stay scalar
#define GPUCOMM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define GPUCOMM_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define GPUCOMM_LEVEL baseline
#define GPUCOMM_VECTOR_BYTES 16
#include "reduce/kernels.inc"
#undef GPUCOMM_VECTOR_BYTES
#undef GPUCOMM_LEVEL

#ifdef GPUCOMM_X86_LEVELS
#ifdef __clang__
#pragma clang attribute push(__attribute__((target(GPUCOMM_V3))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#endif
#define GPUCOMM_LEVEL x86_64_v3
#define GPUCOMM_F16C
#define GPUCOMM_VECTOR_BYTES 32
#include "reduce/kernels.inc"
#undef GPUCOMM_VECTOR_BYTES
#undef GPUCOMM_LEVEL
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#ifdef __clang__
#pragma clang attribute push(__attribute__((target(GPUCOMM_V4))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#endif
#define GPUCOMM_LEVEL x86_64_v4
#define GPUCOMM_VECTOR_BYTES 64
#include "reduce/kernels.inc"
#undef GPUCOMM_VECTOR_BYTES
#undef GPUCOMM_F16C
#undef GPUCOMM_LEVEL
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace gpucomm {
namespace {

// In the order of Simd.
#ifdef GPUCOMM_X86_LEVELS
constexpr const KernelTable* kLevels[] = {&baseline::kKernels, &x86_64_v3::kKernels, &x86_64_v4::kKernels};
#else
constexpr const KernelTable* kLevels[] = {&baseline::kKernels};
#endif

Kernel find_kernel(Dtype dtype, Op op, int divisor) {
  GPUCOMM_CHECK(divisor <= 1 || dtype == Dtype::boolean || op == Op::sum || op == Op::mean);
  if (op == Op::sum || op == Op::mean || op == Op::premul_sum) op = divisor > 1 ? Op::mean : Op::sum;
  const KernelTable& kernels = *kLevels[static_cast<int>(simd())];
  const Kernel kernel = kernels[static_cast<int>(dtype)][static_cast<int>(op)];
  GPUCOMM_CHECK(kernel);  // null: bitwise operations on floats
  return kernel;
}

}  // namespace

void reduce(Dtype dtype, Op op, void* destination, const void* const* sources, int source_count, size_t count,
            int divisor, void* twin) {
  GPUCOMM_CHECK(reducible(dtype) && source_count >= 1);
  if (count == 0) return;
  const bool divides = divisor > 1 && dtype != Dtype::boolean;
  if (source_count == 1 && !divides) {
    for (void* to : {destination, twin})
      if (to && to != sources[0]) std::memmove(to, sources[0], count * size_of(dtype));
    return;
  }
  find_kernel(dtype, op, divisor)(destination, twin, sources, source_count, count, divisor);
}

}  // namespace gpucomm
