#include "bindings/collectives.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>

#include "bindings/in_flight.h"
#include "bindings/interpreter.h"
#include "bindings/names.h"

namespace py = pybind11;

namespace gpucomm {

Seconds checked_timeout(double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds))
    fail(ErrorKind::invalid_argument, "timeout must be a positive, finite number of seconds, got ", seconds);
  return Seconds(std::min(seconds, 1e9));  // clocks count nanoseconds in 63 bits
}

std::string where(const Communicator& communicator) {
  return concat(" (rank ", communicator.rank(), " of ", communicator.world(), ")");
}

Seconds PyCommunicator::timeout(std::optional<double> timeout_s) const {
  return timeout_s ? checked_timeout(*timeout_s) : core_->timeout();
}

void PyCommunicator::check_root(int root) const {
  if (root < 0 || root >= core_->world())
    fail(ErrorKind::invalid_argument, "root must be in [0, ", core_->world(), "), got ", root);
}

Op PyCommunicator::reducing(const Array& x, Text name, Factor scale) const {
  const Op op = parse_op(name);
  const bool wraps = op == Op::sum || op == Op::prod || bitwise(op);
  if (!reducible(folded_as(x.dtype())))
    fail(ErrorKind::unsupported_type, name_of(x.dtype()),
         " arrays cannot be reduced, only moved (broadcast, all_gather and others)");
  if (!reducible(x.dtype()) && !wraps)
    fail(ErrorKind::unsupported_type, "op '", name, "' is not defined for ", name_of(x.dtype()),
         " arrays, only sum, prod, band, bor and bxor");
  if (op == Op::mean && x.dtype() == Dtype::boolean)
    fail(ErrorKind::unsupported_type,
         "op 'mean' is not defined for bool arrays; 'min' is their \"and\", 'max' their \"or\"");
  if (bitwise(op) && is_float(x.dtype()))
    fail(ErrorKind::unsupported_type, "op '", name, "' is not defined for ", name_of(x.dtype()),
         " arrays, only for integers and bool");
  if (op == Op::premul_sum && !is_float(x.dtype()))
    fail(ErrorKind::unsupported_type, "op 'premul_sum' is not defined for ", name_of(x.dtype()),
         " arrays, only for floats");
  if (op == Op::premul_sum && !scale)
    fail(ErrorKind::invalid_argument, "op 'premul_sum' needs scale, the factor of this rank's x");
  if (op != Op::premul_sum && scale)
    fail(ErrorKind::invalid_argument, "scale is only for op 'premul_sum', got op '", name, "'");
  if (scale && x.dtype() != Dtype::float64 && std::isfinite(*scale) && *scale != 0 &&
      !std::isnormal(static_cast<float>(*scale)))
    fail(ErrorKind::invalid_argument, "scale is rounded to float32 for ", name_of(x.dtype()),
         " arrays: it must be 0 or of a magnitude from 1.2e-38 to 3.4e38, got ", *scale);
  return op;
}

// `out` must not overlap x but where they share the `shared_bytes` at `shared` in full (in place).
void PyCommunicator::check_out(const Array& x, const Array& out, size_t count, const std::byte* shared,
                               size_t shared_bytes) const {
  check_writable(out, "out");
  const auto [x_at, out_at] = std::pair(x.place(), out.place());
  if (!x.same_memory(out))
    fail(ErrorKind::invalid_argument, "x and out must be on one device, got DLPack's (type, number) (",
         x_at.type, ", ", x_at.id, ") and (", out_at.type, ", ", out_at.id, ")");
  if (out.dtype() != x.dtype() || out.count() != count)
    fail(ErrorKind::invalid_argument, "out must hold ", count, " elements of ", name_of(x.dtype()), ", got ",
         out.count(), " of ", name_of(out.dtype()));
  const std::byte* begin = shared_bytes < out.bytes() ? x.data() : out.data();
  const bool one = x.bytes() == out.bytes() ? x.data() == out.data() : begin == shared;
  if (x.overlaps(out) && !one)
    fail(ErrorKind::invalid_argument,
         "x and out overlap, but not as one call in place would: pass arrays apart");
}

Shape PyCommunicator::shape(Collective collective, const Array& x, const Options& options) const {
  check_not_forked();
  preparation_.wait_for_others();
  if (options.segments && (*options.segments < 1 || *options.segments > 4096))
    fail(ErrorKind::invalid_argument, "segments must be in [1, 4096], got ", *options.segments);
  return {.collective = collective,
          .dtype = x.dtype(),
          .count = x.count(),
          .segments = options.segments.value_or(0),
          .purpose = part_of_,
          .algorithm = std::string(options.algorithm),
          .on_device = !x.on_host(),
          .pack = options.pack};
}

py::object PyCommunicator::issue(Shape& shape, Arrays arrays, Lent&& lent, const Options& options) {
  const Seconds limit = timeout(options.timeout_s);
  if (shape.on_device) {
    const Array& where = lent.read ? *lent.read : *lent.written;
    return issue_on_device(shape, arrays, where, lent, options, limit);
  }
  lent.lend_error(options.error);
  check_apart(lent.read, lent.written, lent.error_array());
  arrays.error = error_for(lent);
  arrays.lost_sq = options.lost_sq;
  shape.tells_error = arrays.error || arrays.lost_sq;
  const bool chooses = options.algorithm == "auto" && core_->world() > 1;
  if (options.codec) {
    shape.codec = known_codec(*options.codec).codec;
    if (chooses) shape.asked = shape.codec;
    check_codec(shape);
  }
  if (chooses && !core_->links_known()) measure_links(shape, limit);
  if (shape.codec && shape.codec->traits().needs_maximum)
    shape.codec = agreed_codec(shape, *options.codec, arrays, lent.read->count(), limit);
  if (chooses && shape.codec) measure_coding(shape, limit);
  if (preparation_) shape = own(std::move(shape));
  return begin(shape, arrays, lent, options, limit);
}

// A short call often ends before the GIL could have been given away and taken back.
void PyCommunicator::run(const Shape& shape, const Arrays& arrays, Seconds limit) {
  std::shared_ptr<Work> begun;
  if (core_->attempt(shape, arrays, limit, begun)) return;
  blocking(*core_, [&] { begun ? core_->await(std::move(begun)) : core_->run(shape, arrays, limit); });
}

py::object PyCommunicator::begin(const Shape& shape, const Arrays& arrays, const Lent& lent,
                                 const Options& options, Seconds limit) {
  kept_->release_done();
  const bool split =
      shape.op == Op::premul_sum && !shape.on_device && shape.collective != Collective::all_reduce;
  std::vector<PartCall> parts;
  if (split) parts = in_parts(shape, arrays, core_->world());
  if (!options.async_op) {
    split ? run_parts(parts, limit) : run(shape, arrays, limit);
    return lent.result;
  }
  if (!split) parts.push_back({shape, arrays});
  std::vector<std::shared_ptr<Pending>> works;
  for (const PartCall& part : parts) works.push_back(start(part, lent, limit));
  return py::cast(PyWork(py::cast(this), core_, *core_, std::move(works), lent.result, kept_));
}

std::shared_ptr<Work> PyCommunicator::start(const PartCall& call, const Lent& lent, Seconds limit) {
  const auto& [shape, arrays] = call;
  std::shared_ptr<Work> work;
  {
    const Released released;
    work = core_->start(shape, arrays, limit);
  }
  if (!shape.on_device)
    now_in_flight(work, name_of(shape.collective).data(), lent.read, lent.written, lent.error_array());
  kept_->add(work, keep(lent));
  return work;
}

// Once, before the first call that leaves the choice to us; every rank gets here at the same call.
void PyCommunicator::measure_links(const Shape& call, Seconds limit) {
  preparation_.wait_for_others();
  if (preparation_ || core_->closed() || core_->links_known()) return;
  preparation_.run(
      call, [&] { py::module_::import("gpucomm.probe").attr("measure")(py::cast(this), limit.count()); });
}

Shape PyCommunicator::own(Shape call) const {
  if (preparation_ && call.purpose != Purpose::way)
    call.before = preparation_.before(), call.purpose = Purpose::preparation;
  return call;
}

// The end of all_reduce, and of reduce on its root.
py::object PyCommunicator::fold(Shape& call, py::object x, const Array& in, py::object out, Factor scale,
                                const Options& options) {
  std::optional<Array> apart;  // most calls have none: an array is borrowed once
  if (out.is_none())
    check_writable(in, "x", ": pass out= to leave it as it is");
  else
    check_out(in, apart.emplace(out, "out", true), in.count(), in.data(), in.bytes());
  const Array& to = apart ? *apart : in;
  Lent lent{x, apart ? out : x, &in, &to};
  if (scale || !options.error.is_none()) check_call(call, lent, options);
  Arrays arrays{in.data(), to.data()};
  if (in.data() == to.data())
    arrays.factor = scale;
  else if (scale)
    multiply(in, to, scale, options), arrays.input = to.data();
  call.in_place = arrays.input == arrays.output;
  return issue(call, arrays, std::move(lent), options);
}

py::object PyCommunicator::all_reduce(py::object x, Text op, py::object out, Factor scale,
                                      const Options& options) {
  const Array in(x, "x", true);
  Shape call = shape(Collective::all_reduce, in, options);
  call.op = reducing(in, op, scale), call.dtype = folded_as(call.dtype);
  check_has_codec(options);
  return fold(call, x, in, out, scale, options);
}

py::object PyCommunicator::reduce(py::object x, int root, Text op, py::object out, Factor scale,
                                  const Options& options) {
  const Array in(x, "x", true);
  check_root(root);
  Shape call = shape(Collective::reduce, in, options);
  call.op = reducing(in, op, scale), call.dtype = folded_as(call.dtype), call.root = root;
  if (core_->rank() == root) return fold(call, x, in, out, scale, options);
  call.in_place = false;  // x is only read here
  Arrays arrays{in.data(), nullptr};
  multiply_apart(in, scale, arrays);
  return issue(call, arrays, {x, x, &in}, options);
}

py::object PyCommunicator::barrier(std::optional<double> timeout_s, bool async_op) {
  check_not_forked();
  preparation_.wait_for_others();
  const Shape nothing{.purpose = Purpose::barrier, .algorithm = "one_shot"};  // of an all_reduce
  return begin(nothing, {}, {py::none(), py::none()}, {.async_op = async_op}, timeout(timeout_s));
}

void PyCommunicator::set_part_of(const std::string& call) {
  const auto first = static_cast<int>(kFirstComposed);
  part_of_ = call.empty() ? Purpose::call : static_cast<Purpose>(first + parse<int>("call", call, kComposed));
}

void PyCommunicator::abort() {
  if (forked()) return;
  const Released released;
  core_->abort();
}

void PyCommunicator::give_up(const std::exception& exception) const {
  check_not_forked();
  const Error error = core_->fate().error_of(exception);
  const Released released;
  core_->give_up(error);
  throw error;
}

std::vector<int> PyCommunicator::survivors(int round, double patience_s) {
  const Seconds patience = checked_timeout(patience_s);
  check_not_forked();
  std::vector<int> ranks;
  blocking(*core_, [&] { ranks = core_->survivors(round, patience); });
  return ranks;
}

void PyCommunicator::close() {
  if (forked()) return;
  {
    const Released released;
    core_->close();
  }
  try {
    kept_->release_done();  // what a device still works on stays
  } catch (const Error&) {
    kept_->clear();  // the device has failed
  }
}

void PyCommunicator::end() {
  if (forked()) return;
  std::optional<Error> wrong;
  {
    const Released released;
    try {
      core_->check_ended_calls();
    } catch (const Error& error) {
      wrong = error;
    }
  }
  close();
  if (!wrong) wrong = core_->untold();
  if (wrong) throw *wrong;
}

py::dict PyCommunicator::stats() const {
  const Communicator::Stats s = [this] {
    const Released released;  // a thread that ends calls may have the lock for a second
    return core_->stats();
  }();
  py::dict table;
  table["bytes_sent"] = s.traffic.bytes_sent, table["bytes_received"] = s.traffic.bytes_received;
  table["messages_sent"] = s.traffic.messages_sent, table["calls"] = s.calls;
  table["device_calls"] = s.device_calls, table["enqueuing_s"] = s.enqueuing_s;
  table["encodes"] = s.encodes, table["decodes"] = s.decodes;
  return table;
}

}  // namespace gpucomm
