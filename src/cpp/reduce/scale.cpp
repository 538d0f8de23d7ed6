#include "reduce/scale.h"

#include "base/error.h"
#include "base/half.h"

namespace gpucomm {
namespace {

template <class T>
T same(T value) {
  return value;
}

template <class Stored, class Wide, Wide (*load)(Stored), Stored (*store)(Wide)>
void multiply(void* destination, const void* source, size_t count, double factor) {
  auto* out = static_cast<Stored*>(destination);
  const auto* in = static_cast<const Stored*>(source);
  const Wide by = static_cast<Wide>(factor);
  for (size_t i = 0; i < count; ++i) out[i] = store(load(in[i]) * by);
}

}  // namespace

void scale(Dtype dtype, void* destination, const void* source, size_t count, double factor) {
  auto* run = multiply<double, double, same<double>, same<double>>;
  if (dtype == Dtype::float32) run = multiply<float, float, same<float>, same<float>>;
  if (dtype == Dtype::float16) run = multiply<uint16_t, float, float16_to_float, float_to_float16>;
  if (dtype == Dtype::bfloat16) run = multiply<uint16_t, float, bfloat16_to_float, float_to_bfloat16>;
  GPUCOMM_CHECK(reducible(dtype) && is_float(dtype));
  run(destination, source, count, factor);
}

}  // namespace gpucomm
