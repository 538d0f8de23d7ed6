#include "reduce/scale.h"

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/half.h"

namespace gpucomm {
namespace {

#include "reduce/forms.inc"

template <class Form>
void multiply_all(void* destination, const void* source, size_t count, double factor) {
  auto* out = static_cast<typename Form::Stored*>(destination);
  const auto* in = static_cast<const typename Form::Stored*>(source);
  const auto by = static_cast<typename Form::Folded>(factor);
  for (size_t i = 0; i < count; ++i) out[i] = multiply<Form>(in[i], by);
}

}  // namespace

void scale(Dtype dtype, void* destination, const void* source, size_t count, double factor) {
  auto* run = multiply_all<Plain<double>>;
  if (dtype == Dtype::float32) run = multiply_all<Plain<float>>;
  if (dtype == Dtype::float16) run = multiply_all<Float16>;
  if (dtype == Dtype::bfloat16) run = multiply_all<Bfloat16>;
  GPUCOMM_CHECK(reducible(dtype) && is_float(dtype));
  run(destination, source, count, factor);
}

}  // namespace gpucomm
