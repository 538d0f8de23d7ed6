// Operations from one array to another, element by element, as one thread of many does them: premul_sum's
// factor (reduce/scale.h) and what codings lose (codecs/coding.h), with the host's bits. One text for device
// and host, as fold_math.h.
#pragma once
#include "cuda/fold_table.h"

namespace gpucomm::cuda {

struct PairArguments {
  const std::byte* from;
  std::byte* to;
  double factor;
  size_t count, head, packs;  // as of FoldArguments
};

inline PairArguments arguments_of(Dtype dtype, std::byte* to, const std::byte* from, size_t count,
                                  double factor) {
  GPUCOMM_CHECK(reducible(dtype) && is_float(dtype));
  FoldArguments ends{};
  ends.sources[0] = from, ends.destinations[0] = to;
  ends.source_count = ends.destination_count = 1, ends.count = count;
  lay_out_packs(ends, size_of(dtype));
  return {from, to, factor, count, ends.head, ends.packs};
}

struct Multiplied {
  static constexpr bool kReadsTarget = false;
  template <class Form>
  GPUCOMM_BOTH static typename Form::Stored apply(typename Form::Stored from, typename Form::Stored,
                                                  typename Form::Folded factor) {
    return multiply<Form>(from, factor);
  }
};

template <class Form>
constexpr uint32_t kLargestBits = std::is_same_v<Form, Float16>    ? 0x477fe000
                                  : std::is_same_v<Form, Bfloat16> ? 0x7f7f0000
                                                                   : 0x7f7fffff;

struct Difference {
  static constexpr bool kReadsTarget = true;
  template <class Form>
  GPUCOMM_BOTH static typename Form::Stored apply(typename Form::Stored from, typename Form::Stored to,
                                                  float times) {
    constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;
    const auto bits = same_bits<uint32_t>(times * (Form::load(from) - Form::load(to)));
    const uint32_t magnitude = bits & kMagnitude;
    uint32_t kept =
        choose_bits(magnitude > kLargestBits<Form>, kLargestBits<Form> | (bits & ~kMagnitude), bits);
    kept = choose_bits(magnitude >= kInfinity, 0, kept);
    return Form::store(same_bits<float>(kept));
  }
};

template <class Form, class Operation, int kElements>
GPUCOMM_BOTH void pair_elements(const PairArguments& pair, size_t byte) {
  using Stored = typename Form::Stored;
  using Run = cuda::Run<Stored, kElements>;
  using Elements = cuda::Elements<Stored, kElements>;
  const auto factor = static_cast<typename Form::Folded>(pair.factor);
  const auto from = same_bits<Elements>(load<Run>(pair.from, byte));
  Elements to = from;
  if constexpr (Operation::kReadsTarget) to = same_bits<Elements>(load<Run>(pair.to, byte));
#pragma unroll
  for (int e = 0; e < kElements; ++e)
    to.at[e] = Operation::template apply<Form>(from.at[e], to.at[e], factor);
  store(pair.to, byte, same_bits<Run>(to));
}

// The share of one of `threads` threads.
template <class Form, class Operation>
GPUCOMM_BOTH void pair_share(const PairArguments& pair, size_t thread, size_t threads) {
  constexpr size_t kSize = sizeof(typename Form::Stored), kElements = kPackBytes / kSize;
  for (size_t pack = thread; pack < pair.packs; pack += threads)
    pair_elements<Form, Operation, kElements>(pair, pair.head * kSize + pack * kPackBytes);
  const size_t packed = pair.packs * kElements;
  for (size_t i = thread; i < pair.count - packed; i += threads)
    pair_elements<Form, Operation, 1>(pair, (i < pair.head ? i : i + packed) * kSize);
}

// Calls visit<Form>(), of what codecs take and what is multiplied in float32.
template <class Visit>
void with_narrow_form(Dtype dtype, Visit visit) {
  if (dtype == Dtype::float32) return visit.template operator()<Plain<float>>();
  if (dtype == Dtype::float16) return visit.template operator()<Float16>();
  visit.template operator()<Bfloat16>();
}
template <class Visit>
void with_form(Dtype dtype, Visit visit) {
  if (dtype == Dtype::float64) return visit.template operator()<Plain<double>>();
  with_narrow_form(dtype, visit);
}

}  // namespace gpucomm::cuda
