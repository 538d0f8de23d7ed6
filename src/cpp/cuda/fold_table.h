// From (dtype, op, number of sources) to the one instance of fold_share that does it, and the arguments of
// it.
#pragma once
#include <algorithm>

#include "base/error.h"
#include "cuda/fold_math.h"

namespace gpucomm::cuda {

// Calls visit<Form, Operation, kSources>(). Sums of floats are what training reduces: for them the common
// numbers of ranks have a kernel each.
template <class Form, class Operation, class Visit>
void with_sources(int sources, Visit& visit) {
  if constexpr (std::is_same_v<Operation, Sum> && std::is_floating_point_v<typename Form::Folded>) {
    if (sources == 2) return visit.template operator()<Form, Operation, 2>();
    if (sources == 4) return visit.template operator()<Form, Operation, 4>();
    if (sources == 8) return visit.template operator()<Form, Operation, 8>();
  }
  visit.template operator()<Form, Operation, 0>();
}

template <class Form, class OrderedMin, class OrderedMax, class Product, class Visit>
void with_number(Op op, int sources, Visit& visit) {
  if (op == Op::min) return with_sources<OrderedMin, Min>(sources, visit);
  if (op == Op::max) return with_sources<OrderedMax, Max>(sources, visit);
  if (op == Op::prod) return with_sources<Product, Prod>(sources, visit);
  with_sources<Form, Sum>(sources, visit);  // mean and premul_sum too: the divisor is an argument
}

template <class Form, class Visit>
void with_float(Op op, int sources, Visit& visit) {
  with_number<Form, Form, Form, Form>(op, sources, visit);
}

template <class Form, uint16_t kHalfNan, class Visit>
void with_half(Op op, int sources, Visit& visit) {
  with_number<Form, OrderedHalf<kHalfNan, -0x8000>, OrderedHalf<kHalfNan, 0x7fff>, Form>(op, sources, visit);
}

template <class Form, class Visit>
void with_bits(Op op, int sources, Visit& visit) {
  if (op == Op::band) return with_sources<Form, And>(sources, visit);
  if (op == Op::bor) return with_sources<Form, Or>(sources, visit);
  with_sources<Form, Xor>(sources, visit);
}

// Products and bits are the same signed or not.
template <class T, class Visit>
void with_integer(Op op, int sources, Visit& visit) {
  using Unsigned = Plain<std::make_unsigned_t<T>>;
  if (bitwise(op)) return with_bits<Unsigned>(op, sources, visit);
  with_number<Plain<T>, Plain<T>, Plain<T>, Unsigned>(op, sources, visit);
}

template <class Visit>
void with_boolean(Op op, int sources, Visit& visit) {
  if (op == Op::bxor) return with_sources<Boolean, Xor>(sources, visit);
  if (op == Op::min || op == Op::prod || op == Op::band) return with_sources<Boolean, Min>(sources, visit);
  with_sources<Boolean, Max>(sources, visit);
}

template <class Visit>
void with_fold(Dtype dtype, Op op, int sources, Visit visit) {
  switch (dtype) {
    case Dtype::float64:
      return with_float<Plain<double>>(op, sources, visit);
    case Dtype::float32:
      return with_float<Plain<float>>(op, sources, visit);
    case Dtype::float16:
      return with_half<Float16, kFloat16Nan>(op, sources, visit);
    case Dtype::bfloat16:
      return with_half<Bfloat16, kBfloat16Nan>(op, sources, visit);
    case Dtype::int8:
      return with_integer<int8_t>(op, sources, visit);
    case Dtype::int16:
      return with_integer<int16_t>(op, sources, visit);
    case Dtype::int32:
      return with_integer<int32_t>(op, sources, visit);
    case Dtype::int64:
      return with_integer<int64_t>(op, sources, visit);
    case Dtype::uint8:
      return with_integer<uint8_t>(op, sources, visit);
    case Dtype::boolean:
      return with_boolean(op, sources, visit);
    default:
      GPUCOMM_CHECK(reducible(dtype));
  }
}

// Packs only where all pointers reach a multiple of kPackBytes after the same number of elements.
template <class Arguments>
void lay_out_packs(Arguments& fold, size_t size_bytes) {
  const auto address = [](const std::byte* at) { return reinterpret_cast<uintptr_t>(at) % kPackBytes; };
  const uintptr_t first = address(fold.sources[0]);
  const auto differs = [&](const std::byte* at) { return address(at) != first; };
  fold.head = fold.packs = 0;
  if (std::any_of(fold.sources, fold.sources + fold.source_count, differs) ||
      std::any_of(fold.destinations, fold.destinations + fold.destination_count, differs))
    return;
  fold.head = std::min<size_t>((kPackBytes - first) % kPackBytes / size_bytes, fold.count);
  fold.packs = (fold.count - fold.head) * size_bytes / kPackBytes;
}

template <int kMost = kMaxSources>
FoldArgumentsOf<kMost> arguments_of(const Fold& fold) {
  const size_t sources = fold.sources.size(), destinations = fold.destinations.size();
  GPUCOMM_CHECK(reducible(fold.dtype) && !(bitwise(fold.op) && is_float(fold.dtype)));
  GPUCOMM_CHECK(sources >= 1 && sources <= kMost && destinations >= 1 && destinations <= kMost);
  const bool divides = fold.divisor > 1 && fold.dtype != Dtype::boolean;
  GPUCOMM_CHECK(!divides || fold.op == Op::sum || fold.op == Op::mean || fold.op == Op::premul_sum);
  FoldArgumentsOf<kMost> arguments{};
  std::copy(fold.sources.begin(), fold.sources.end(), arguments.sources);
  std::copy(fold.destinations.begin(), fold.destinations.end(), arguments.destinations);
  arguments.source_count = static_cast<int>(sources);
  arguments.destination_count = static_cast<int>(destinations);
  arguments.divisor = divides ? fold.divisor : 1;
  arguments.count = fold.count;
  lay_out_packs(arguments, size_of(fold.dtype));
  return arguments;
}

}  // namespace gpucomm::cuda
