// The multiplication of reduce/scale.h as one thread of many does it: the same forms as on the host, so the
// same bits. One text for device and host, as fold_math.h.
#pragma once
#include "cuda/fold_table.h"

namespace gpucomm::cuda {

struct ScaleArguments {
  const std::byte* from;
  std::byte* to;
  double factor;
  size_t count, head, packs;  // as of FoldArguments
};

inline ScaleArguments arguments_of(Dtype dtype, std::byte* to, const std::byte* from, size_t count,
                                   double factor) {
  GPUCOMM_CHECK(reducible(dtype) && is_float(dtype));
  FoldArguments ends{};
  ends.sources[0] = from, ends.destinations[0] = to;
  ends.source_count = ends.destination_count = 1, ends.count = count;
  lay_out_packs(ends, size_of(dtype));
  return {from, to, factor, count, ends.head, ends.packs};
}

template <class Form, int kElements>
GPUCOMM_BOTH void scale_elements(const ScaleArguments& scale, size_t index) {
  using Stored = typename Form::Stored;
  using Run = cuda::Run<Stored, kElements>;
  const auto by = static_cast<typename Form::Folded>(scale.factor);
  auto values = same_bits<Elements<Stored, kElements>>(load<Run, Stored>(scale.from, index));
#pragma unroll
  for (int e = 0; e < kElements; ++e) values.at[e] = multiply<Form>(values.at[e], by);
  store<Stored>(scale.to, index, same_bits<Run>(values));
}

// The share of one of `threads` threads.
template <class Form>
GPUCOMM_BOTH void scale_share(const ScaleArguments& scale, size_t thread, size_t threads) {
  constexpr size_t kElements = kPackBytes / sizeof(typename Form::Stored);
  for (size_t pack = thread; pack < scale.packs; pack += threads)
    scale_elements<Form, kElements>(scale, scale.head + pack * kElements);
  const size_t packed = scale.packs * kElements;
  for (size_t i = thread; i < scale.count - packed; i += threads)
    scale_elements<Form, 1>(scale, i < scale.head ? i : i + packed);
}

// Calls visit<Form>().
template <class Visit>
void with_form(Dtype dtype, Visit visit) {
  if (dtype == Dtype::float64) return visit.template operator()<Plain<double>>();
  if (dtype == Dtype::float32) return visit.template operator()<Plain<float>>();
  if (dtype == Dtype::float16) return visit.template operator()<Float16>();
  visit.template operator()<Bfloat16>();
}

}  // namespace gpucomm::cuda
