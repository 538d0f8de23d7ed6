// Halves that lie together, folded two at a time to their least or greatest. GPUs have instructions for what
// OrderedHalf does by integers, with the same outcome but for the bits of NaN: -0 is below +0, and NaN wins.
#pragma once
#include "cuda/forms.h"
#include "cuda/kinds.h"

namespace gpucomm::cuda {

template <Kind kKind>
struct HalfPair {
  using Stored = uint32_t;
  using Folded = uint32_t;
  GPUCOMM_BOTH static uint32_t load(uint32_t halves) { return halves; }
  GPUCOMM_BOTH static uint32_t store(uint32_t halves) { return canonical_two(kKind, halves); }
};

template <Kind kKind, class Form, class Operation>
struct OfPairs {
  GPUCOMM_BOTH static uint32_t apply(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    constexpr bool kGreatest = std::is_same_v<Operation, Max>;
    if constexpr (kKind == Kind::float16 && kGreatest)
      asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    else if constexpr (kKind == Kind::float16)
      asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    else if constexpr (kGreatest)
      asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    else
      asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
#else
    const auto one = [](uint32_t x, uint32_t y) -> uint32_t {
      const auto low = static_cast<uint16_t>(x), other = static_cast<uint16_t>(y);
      return Form::store(Operation::apply(Form::load(low), Form::load(other)));
    };
    return one(a, b) | one(a >> 16, b >> 16) << 16;
#endif
  }
};

// What a pack is folded as: where its elements are not taken one by one, by other forms and operations.
template <class Single, class Operation>
struct Packed {
  using Form = Single;
  using Folding = Operation;
};
template <uint16_t kHalfNan, int16_t kNanKey, class Operation>
struct Packed<OrderedHalf<kHalfNan, kNanKey>, Operation> {
  static constexpr Kind kKind = kHalfNan == kFloat16Nan ? Kind::float16 : Kind::bfloat16;
  using Form = HalfPair<kKind>;
  using Folding = OfPairs<kKind, OrderedHalf<kHalfNan, kNanKey>, Operation>;
};

}  // namespace gpucomm::cuda
