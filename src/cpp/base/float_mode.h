// How this thread computes with floats: rounded to nearest, denormals as they are. A thread that drives a
// call may have set something else for its own numbers (torch.set_flush_denormal, fesetround), and which
// thread that is differs from rank to rank and from run to run.
#pragma once
#include <cstdint>
#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace gpucomm {

class StandardFloats {
 public:
  StandardFloats() : before_(mode()) {
    if (before_ & kOther) set(before_ & ~kOther);
  }
  StandardFloats(const StandardFloats&) = delete;
  ~StandardFloats() {
    if (before_ & kOther) set(before_);
  }

 private:
#if defined(__SSE2__)
  using Mode = uint32_t;
  static constexpr Mode kOther = 0xe040;  // of MXCSR: flush to zero, rounding, denormals are zeros
  static Mode mode() { return _mm_getcsr(); }
  static void set(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  using Mode = uint64_t;
  static constexpr Mode kOther = 0x7c80007;  // of FPCR: AHP, DN, FZ, RMode, FZ16; NEP, AH, FIZ
  static Mode mode() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
  using Mode = uint32_t;
  static constexpr Mode kOther = 0;
  static Mode mode() { return 0; }
  static void set(Mode) {}
#endif

  const Mode before_;
};

}  // namespace gpucomm
