// One loop, compiled for every SIMD level: Leveled<kernel>::run(...) calls the copy of the level in use. All
// that the kernel calls is inlined into each copy.
#pragma once
#include "base/simd.h"

namespace gpucomm {

template <auto kernel>
struct Leveled;

template <class Result, class... Args, Result (*kernel)(Args...)>
struct Leveled<kernel> {
  static Result run(Args... args) {
#ifdef GPUCOMM_X86_LEVELS
    if (simd() == Simd::v4) return v4(args...);
    if (simd() == Simd::v3) return v3(args...);
#endif
    return v1(args...);
  }

 private:
  [[gnu::flatten]] static Result v1(Args... args) { return kernel(args...); }
#ifdef GPUCOMM_X86_LEVELS
  [[gnu::flatten, gnu::target(GPUCOMM_V3)]] static Result v3(Args... args) { return kernel(args...); }
  [[gnu::flatten, gnu::target(GPUCOMM_V4)]] static Result v4(Args... args) { return kernel(args...); }
#endif
};

}  // namespace gpucomm
