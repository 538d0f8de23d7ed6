// Calls with a codec: which one it is, what it costs, and where it goes what it loses.
#include <pybind11/stl.h>

#include <array>
#include <cstring>

#include "base/float_mode.h"
#include "bindings/collectives.h"
#include "bindings/devices.h"
#include "bindings/in_flight.h"
#include "bindings/interpreter.h"
#include "codecs/coding.h"
#include "codecs/floats.h"
#include "reduce/scale.h"

namespace py = pybind11;

namespace gpucomm {

// What is wrong with a call that writes x or error first, before it does; others are checked on their way.
void PyCommunicator::check_call(Shape call, Lent& lent, const Options& options) {
  static_cast<void>(timeout(options.timeout_s));
  lent.lend_error(options.error);
  if (!call.on_device) check_apart(lent.read, lent.written, lent.error_array());
  if (options.codec) {
    call.codec = known_codec(*options.codec).codec;
    check_codec(call);
  }
  if (call.on_device) find_way(call, *device_of(*lent.read, "x"), timeout(options.timeout_s));
  core_->check_wish(call);
  if (call.on_device) check_on_device(call, *device_of(*lent.read, "x"));
  if (lent.error) check_error(*lent.read, *lent.written, *lent.error, options);
}

void PyCommunicator::check_error(const Array& x, const Array& out, const Array& error,
                                 const Options& options) const {
  if (!error.same_memory(x)) fail(ErrorKind::invalid_argument, "x and error must be on one device");
  if (options.algorithm != "auto" && Registry<Algorithm>::find(options.algorithm).repeats)
    fail(ErrorKind::invalid_argument, "algorithm '", options.algorithm,
         "' encodes an element more than once, so it cannot tell an error: leave out error=");
  check_writable(error, "error");
  if (error.dtype() != x.dtype() || error.count() != x.count())
    fail(ErrorKind::invalid_argument, "error must hold ", x.count(), " elements of ", name_of(x.dtype()),
         ", as x, got ", error.count(), " of ", name_of(error.dtype()));
  if (error.overlaps(x) || error.overlaps(out))
    fail(ErrorKind::invalid_argument, "error must be apart from x and out");
}

std::byte* PyCommunicator::error_for(const Lent& lent) const {
  return lent.error && !core_->closed() ? lent.error->data() : nullptr;
}

PyCommunicator::Known& PyCommunicator::known_codec(const std::string& spec) {
  constexpr size_t kMost = 512;
  if (codecs_.size() >= kMost && !codecs_.contains(spec)) codecs_.clear();
  Known& known = codecs_[spec];
  if (!known.codec) known.codec = parse_codec(spec);
  return known;
}

void PyCommunicator::check_codec(const Shape& call) const {
  if (!call.codec->takes(call.dtype))
    fail(ErrorKind::unsupported_type, "codec ", call.codec->spec(), " does not take ", name_of(call.dtype),
         " arrays");
  const bool sums = call.op == Op::sum || call.op == Op::mean || call.op == Op::premul_sum;
  if (reduces(call.collective) && !sums)
    fail(ErrorKind::invalid_argument, "codec ", call.codec->spec(), " cannot carry op '", name_of(call.op),
         "': what is coded can only be summed (sum, mean, premul_sum)");
  if (reduces(call.collective)) check_sums(*call.codec, core_->world());
}

// Of products that are not made yet, from the largest factor: rounding keeps their order.
static double largest_product(Dtype dtype, double most, double factor) {
  std::array<std::byte, sizeof most> product;
  const auto as_float = static_cast<float>(most);
  if (dtype == Dtype::float64)
    std::memcpy(product.data(), &most, sizeof most);
  else
    narrow(dtype, &as_float, 1, product.data());
  scale(dtype, product.data(), product.data(), 1, factor);
  return max_abs(dtype, product.data(), 1);
}

// That of a call's which needs the largest magnitude of all ranks first, and gets it in a small call of its
// own that is waited for; null where the choice is ours and coding does not pay.
std::shared_ptr<const Codec> PyCommunicator::agreed_codec(Shape call, const std::string& spec,
                                                          const Arrays& arrays, size_t count, Seconds limit) {
  const std::shared_ptr<const Codec> codec = call.codec;
  core_->check_wish(call);  // before the ranks agree on anything
  if (call.algorithm == "auto" && core_->world() > 1) {
    auto& known = known_codec(spec).smallest;
    if (!known) known = smallest(codec, core_->world());
    call.codec = known;
    measure_coding(call, limit);
    if (core_->refuses_coding(call)) return nullptr;
  }
  double most;
  {
    const Released released;
    const StandardFloats floats;
    most = max_abs(call.dtype, arrays.input, count);
    if (arrays.factor) most = largest_product(call.dtype, most, *arrays.factor);
  }
  preparation_.run(call, [&] { agree_on_largest(&most, 1, limit); });
  return codec->agreed(most, core_->world());
}

std::optional<Choice> PyCommunicator::settled_without_codec(py::object object, const std::string& spec,
                                                            bool tells_error) {
  const Array x(object, "x", true);
  Shape call = shape(Collective::reduce_scatter, x, {"auto"});
  call.codec = known_codec(spec).codec;
  call.tells_error = tells_error;
  const bool known = core_->frozen() || (core_->links_known() && core_->coding_known(*call.codec));
  if (call.on_device || call.codec->traits().needs_maximum || !known) return {};
  return core_->settled_without_codec(call);
}

// A small call of our own, waited for.
void PyCommunicator::agree_on_largest(double* values, size_t count, Seconds limit, Purpose purpose) {
  auto* bytes = reinterpret_cast<std::byte*>(values);
  blocking(*core_, [&] { core_->run(own(largest_of(count, purpose)), {bytes, bytes}, limit); });
}

void PyCommunicator::time_codec(const std::string& spec) {
  Shape call{.op = Op::sum, .dtype = Dtype::float32};
  call.codec = smallest(known_codec(spec).codec, core_->world());
  if (core_->world() > 1) measure_coding(call, core_->timeout());
}

// Once for each codec, before its first call that leaves the choice to us. All ranks at once, as in calls:
// they may have less than a core each.
void PyCommunicator::measure_coding(const Shape& call, Seconds limit) {
  preparation_.wait_for_others();
  if (call.codec == timed_ || core_->frozen()) return;
  if (!core_->coding_known(*call.codec)) take_time(call, limit);
  timed_ = call.codec;
}

void PyCommunicator::take_time(const Shape& call, Seconds limit) {
  std::array<double, 2> seconds{};
  preparation_.run(call, [&] {
    agree_on_largest(seconds.data(), seconds.size(), limit);
    {
      const Released released;
      seconds = time_coding(*call.codec, call.dtype);
    }
    agree_on_largest(seconds.data(), seconds.size(), limit);
  });
  core_->set_coding(*call.codec, {1, seconds[0], seconds[1]});
}

}  // namespace gpucomm
