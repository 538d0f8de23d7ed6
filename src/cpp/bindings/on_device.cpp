// Collectives on arrays in a device's memory: they are enqueued, and the caller's stream waits for them.
#include <algorithm>
#include <thread>

#include "bindings/collectives.h"
#include "bindings/devices.h"
#include "bindings/interpreter.h"
#include "engine/arena_probe.h"
#include "engine/device_largest.h"
#include "engine/device_norms.h"
#include "engine/nccl_native.h"
#include "engine/staging.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

// By the rules of gpucomm.nccl. That there is none is told to all ranks, by the call that needs it.
NcclSource find_nccl() {
  try {
    const auto found = py::module_::import("gpucomm.nccl").attr("load")();
    return {found.cast<std::shared_ptr<NcclLibrary>>(), ""};
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C, say
    return {nullptr, py::str(error.value())};
  }
}

}  // namespace

// Without a GPU's links measured: one pass over all ranks' memory, or the ring where messages are coded.
void choose_on_device(Shape& shape) {
  if (shape.algorithm == "auto") shape.algorithm = shape.codec ? "coded_ring" : "direct";
  if (!shape.segments) shape.segments = 1;
}

// What passes through host memory travels by links that can be measured; of those of NCCL the nodes are
// known.
void PyCommunicator::choose_by_links(Shape& shape, Seconds limit) {
  const bool staged = shape.way == DeviceWay::staged;
  if ((!staged && shape.way != DeviceWay::nccl) || core_->world() == 1 || shape.algorithm == kNative) return;
  if (shape.algorithm != "auto" && shape.segments) return;
  if (staged && !core_->links_known()) measure_links(shape, limit);
  for (const Choice& choice : core_->candidates(shape)) {
    if (codes(choice) != (shape.codec != nullptr)) continue;
    shape.algorithm = choice.algorithm, shape.segments = choice.segments;
    return;
  }
}

void poll(const OwnEvent& event, Communicator& communicator, Clock::time_point deadline, double patience_s) {
  constexpr auto kLongest = std::chrono::microseconds(500);
  for (auto nap = std::chrono::microseconds(1); !event.device()->done(event.get());
       nap = std::min(2 * nap, kLongest)) {
    const bool late = Clock::now() >= deadline;
    communicator.check_enqueued(false, late ? std::optional(Seconds(patience_s)) : std::nullopt);
    if (late)
      fail(ErrorKind::timeout, "the work on ", event.device()->name(), " has not ended after ", patience_s,
           " s");
    std::this_thread::sleep_for(nap);
  }
  communicator.check_enqueued(true, {});
  const std::string failure = event.device()->failure();
  if (!failure.empty()) fail(ErrorKind::unavailable, event.device()->name(), ": ", failure);
  communicator.check_coding();
}

void refuse_capture(uint64_t capture, const char* why) {
  if (capture) fail(ErrorKind::invalid_argument, "the stream is being captured into a graph, but ", why);
}

Stream stream_of(const Options& options, const Array& array) {
  const Stream stream = options.stream ? reinterpret_cast<Stream>(*options.stream) : array.current_stream();
  if (reinterpret_cast<uintptr_t>(stream) == dlpack::kStreamPerThread)
    fail(ErrorKind::invalid_argument, "stream ", dlpack::kStreamPerThread,
         " is CUDA's default stream of the calling thread, but other threads enqueue too: make a stream, and "
         "pass its handle");
  return stream;
}

void stream_waits(const Pending& call) {
  if (call.error || !call.finished) return;
  Device& device = *call.finished->device();
  const uint64_t capture = device.capture_of(call.stream);
  if (capture && capture != call.capture)
    fail(ErrorKind::invalid_argument,
         "the call's stream is being captured into a graph of which the call is no part: wait() before the "
         "capture begins");
  if (call.capture && !capture)
    fail(ErrorKind::invalid_argument,
         "the call was captured into a graph, whose launches tell when it has run: wait() in the capture");
  device.wait(call.stream, call.finished->get());
}

py::object PyWork::synchronize(std::optional<double> timeout_s) {
  require_no_graph();
  const Seconds patience = timeout_s ? checked_timeout(*timeout_s) : communicator_->timeout();
  const auto deadline = Clock::now() + clock_time(patience);
  py::object result = wait(timeout_s);
  {
    const Released released;
    for (const auto& call : calls_)
      if (call->finished) poll(*call->finished, *communicator_, deadline, patience.count());
  }
  release(true);
  return result;
}

// Two ranks cannot settle for all what a third one needs.
DeviceWay PyCommunicator::message_way() {
  const DeviceWay way = core_->device_wish().way;
  if (way == DeviceWay::nccl && core_->lacks_nccl()) core_->give_nccl(find_nccl());
  return way;
}

void PyCommunicator::check_on_device(const Shape& shape, Device& device) const {
  const std::string failed = device.failure();
  if (!failed.empty()) fail(ErrorKind::unavailable, device.name(), " failed in earlier work: ", failed);
  if (core_->coded_on_device()) {
    const Released released;  // another rank may be enqueuing
    core_->check_coding();
  }
  if (!shape.codec) return;
  if (shape.codec->traits().needs_maximum) return;  // what is agreed on is asked for
  const std::string refusal = device.refuses(*shape.codec, shape.dtype);
  if (!refusal.empty())
    fail(ErrorKind::invalid_argument, "codec '", shape.codec->spec(), "' on ", device.name(), ": ", refusal);
}

// All ranks, or none: the finding of each step is agreed on before the next one.
bool PyCommunicator::can_go(DeviceWay way, Device& device, Seconds limit) {
  const auto agreed = [&](bool can) {
    double lacks = !can;
    agree_on_largest(&lacks, 1, limit, Purpose::way);
    return lacks == 0;
  };
  if (way == DeviceWay::nccl) return agreed(core_->nccl().library != nullptr);
  const auto can = [&](auto probe) {
    const Released released;  // it asks the device, which may take its time
    return probe(device, core_->transport(), core_->rank(), core_->world()).empty();
  };
  return agreed(can(offer_probe)) && agreed(can(open_probes));
}

// The first call settles it for all: where the choice is ours, in a small call of its own that is waited for.
void PyCommunicator::find_way(Shape& shape, Device& device, Seconds limit) {
  preparation_.wait_for_others();
  if (!core_->device_way())
    preparation_.run(shape, [&] {
      DeviceWay way = message_way();
      if (core_->device_wish().else_staged && core_->world() > 1 && !can_go(way, device, limit))
        way = DeviceWay::staged;
      core_->settle_device_way(way);
    });
  shape.way = *core_->device_way();
}

// The host waits for the largest magnitude of this rank, and then for that of all.
std::shared_ptr<const Codec> PyCommunicator::agreed_on_device(const Shape& shape, const Arrays& arrays,
                                                              const Array& where, Seconds limit) {
  refuse_capture(arrays.capture, "the ranks agree on the largest magnitude first, on the host");
  std::vector<DeviceLargest::Span> spans;
  if (!arrays.staging) spans.push_back({arrays.input, where.count()});
  for (size_t i = 0; arrays.staging && i < arrays.staging->in.size(); ++i) {
    const Staging::Copy& copy = arrays.staging->in[i];
    spans.push_back({copy.array, copy.bytes / size_of(shape.dtype)});
  }
  double most = 0;
  {
    const Released released;
    DeviceLargest largest(spare_, arrays.device, shape.dtype, spans, arrays.stream);
    const auto deadline = Clock::now() + clock_time(limit);
    poll(largest.finished(), *core_, deadline, limit.count());
    const auto factor = arrays.staging ? arrays.staging->factor : arrays.factor;
    most = largest.value(factor.value_or(1));
  }
  preparation_.run(shape, [&] { agree_on_largest(&most, 1, limit); });
  return shape.codec->agreed(most, core_->world());
}

py::object PyCommunicator::issue_on_device(Shape& shape, Arrays arrays, const Array& where, Lent& lent,
                                           const Options& options, Seconds limit) {
  arrays.device = device_of(where, "x");
  arrays.stream = stream_of(options, where);
  arrays.capture = arrays.device->capture_of(arrays.stream);
  arrays.stream_waits = !options.async_op;
  lent.lend_error(options.error);
  arrays.error = error_for(lent);
  shape.tells_error = arrays.error || options.lost_sq;
  if (options.codec) {
    shape.codec = known_codec(*options.codec).codec;
    check_codec(shape);
  }
  check_on_device(shape, *arrays.device);
  if (core_->device_wish().way != DeviceWay::threads)
    refuse_capture(arrays.capture,
                   "only calls of ranks that are threads can be: others wait for each other on the host");
  find_way(shape, *arrays.device, limit);
  core_->check_wish(shape);
  if (shape.codec && shape.codec->traits().needs_maximum) {
    shape.codec = agreed_on_device(shape, arrays, where, limit);
    check_on_device(shape, *arrays.device);
  }
  choose_by_links(shape, limit);
  choose_on_device(shape);
  if (options.async_op && !arrays.capture) {
    arrays.came = came_.take(arrays.device);
    arrays.device->record(arrays.came->get(), arrays.stream);
  }
  if (!options.lost_sq) return begin(shape, arrays, lent, options, limit);
  auto lost = begin_norms(arrays.device, arrays.stream);
  arrays.lost_parts = lost->parts();
  py::object result = begin(shape, arrays, lent, options, limit);
  *options.lost_sq = total_of(std::move(lost), arrays.stream, limit).squares[0];
  return result;
}

}  // namespace gpucomm
