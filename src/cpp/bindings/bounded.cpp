// What max_rel_err asks of a communicator (gpucomm/bounded.py), in host memory and on devices: norms of an
// array, what was lost of it, and what each way to send it costs.
#include <bit>
#include <cmath>

#include "base/float_mode.h"
#include "bindings/collectives.h"
#include "bindings/devices.h"
#include "bindings/in_flight.h"
#include "bindings/interpreter.h"
#include "codecs/coding.h"
#include "codecs/floats.h"
#include "engine/device_norms.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

void check(const Array& x, const std::vector<size_t>& blocks) {
  if (!is_float_up_to_32(x.dtype()))
    fail(ErrorKind::unsupported_type, "max_rel_err is for float32, float16 and bfloat16 arrays, got ",
         name_of(x.dtype()));
  for (const size_t block : blocks)
    if (!std::has_single_bit(block) || block > 1u << (kBlockSizes - 1))
      fail(ErrorKind::invalid_argument, "blocks must be powers of two up to ", 1u << (kBlockSizes - 1),
           ", got ", block);
}

NormSums on_host(const Squared& of) {
  const Released released;
  const StandardFloats floats;
  NormSums sums;
  add_squares(of, sums);
  return sums;
}

// Of all ranks' pieces, one for each of them: the same on every rank.
double bytes_of(const Codec* codec, Dtype dtype, size_t count, size_t world) {
  if (!codec) return static_cast<double>(count * size_of(dtype));
  return static_cast<double>(world * (kCodedHeader + codec->max_bytes((count + world - 1) / world, dtype)));
}

}  // namespace

// Enqueued behind what the stream holds; the host waits for it.
NormSums PyCommunicator::norms_on_device(Squared of, const Array& x, const Options& options) {
  const std::shared_ptr<Device> device = device_of(x, "x");
  const Stream stream = stream_of(options, x);
  const Seconds limit = timeout(options.timeout_s);
  check_on_device({}, *device);
  auto norms = begin_norms(device, stream);
  device->add_squares(of, norms->parts(), stream);
  return total_of(std::move(norms), stream, limit);
}

std::unique_ptr<DeviceNorms> PyCommunicator::begin_norms(std::shared_ptr<Device> device, Stream stream) {
  refuse_capture(device->capture_of(stream), "max_rel_err reads norms on the host");
  const Released released;  // a device may have to wait before it gives memory, or takes it back
  return std::make_unique<DeviceNorms>(spare_, std::move(device), stream);
}

NormSums PyCommunicator::total_of(std::unique_ptr<DeviceNorms> given, Stream stream, Seconds limit) const {
  const Released released;
  const auto norms = std::move(given);
  const auto deadline = Clock::now() + clock_time(limit);
  norms->read(stream);
  poll(norms->finished(), *core_, deadline, limit.count());
  return norms->total();
}

py::list PyCommunicator::norms(py::object object, const std::vector<size_t>& blocks, const Options& options) {
  const Array x(object, "x", true);
  check(x, blocks);
  check_apart(&x, nullptr);  // the call itself comes behind messages, which let those under way end
  Squared of{x.dtype(), x.data(), x.count()};
  for (const size_t block : blocks) of.blocks |= static_cast<unsigned>(block);
  const NormSums sums = x.on_host() ? on_host(of) : norms_on_device(of, x, options);
  py::list all;
  all.append(name_of(x.dtype())), all.append(x.count());
  all.append(std::sqrt(sums.squares[0])), all.append(sums.largest);
  for (const size_t block : blocks) all.append(std::sqrt(sums.squares[std::countr_zero(block)]));
  return all;
}

std::vector<Choice> PyCommunicator::predict(py::object object, const std::optional<std::string>& codec,
                                            Maybe timeout_s) {
  const Array x(object, "x", true);
  const Seconds limit = timeout(timeout_s);
  Shape call = shape(Collective::all_reduce, x, {"auto"});
  if (codec) call.codec = known_codec(*codec).codec;
  if (call.on_device) return predict_on_device(std::move(call), *device_of(x, "x"));
  if (core_->world() > 1 && !core_->links_known()) measure_links(call, limit);
  if (codec) measure_coding(call, limit);
  return core_->candidates(call);
}

// The links of devices are not measured, but all algorithms that "auto" takes there send as many pieces: the
// cost is the bytes of x as it travels.
std::vector<Choice> PyCommunicator::predict_on_device(Shape call, Device& device) const {
  if (call.codec && !device.refuses(*call.codec, call.dtype).empty()) return {};
  choose_on_device(call);
  return {{call.algorithm, call.segments,
           bytes_of(call.codec.get(), call.dtype, call.count, static_cast<size_t>(core_->world()))}};
}

}  // namespace gpucomm
