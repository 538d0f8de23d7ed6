#include "bindings/collectives.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/env.h"
#include "base/simd.h"
#include "bindings/in_flight.h"
#include "bindings/names.h"
#include "transports/emulated.h"
#include "transports/wire.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

Seconds seconds(double value) {
  if (!(value > 0) || !std::isfinite(value))
    fail(ErrorKind::invalid_argument, "timeout must be a positive number of seconds, got ", value);
  return Seconds(std::min(value, 1e9));  // clocks count nanoseconds in 63 bits
}

}  // namespace

bool ended(const Pending& call) {
  if (!call.done.load(std::memory_order_acquire)) return false;
  return call.error || !call.finished || call.captured || call.finished->device()->done(call.finished->get());
}

py::object PyWork::wait(std::optional<double> timeout_s) {
  if (!settled()) {
    check_not_forked();
    std::optional<Seconds> timeout;
    if (timeout_s) timeout = seconds(*timeout_s);
    blocking(*communicator_, [&] {
      for (const auto& call : calls_) driver_.wait(*call, timeout);
    });
  }
  for (const auto& call : calls_) stream_waits(*call);
  return outcome();
}

void PyWork::require_no_graph() const {
  for (const auto& call : calls_)
    if (call->captured)
      fail(ErrorKind::invalid_argument,
           "the call was captured into a graph, whose launches tell when it has run: in the capture, wait() "
           "makes the stream wait");
}

bool PyWork::done() const {
  require_no_graph();
  for (const auto& call : calls_)
    if (!ended(*call)) return false;
  return true;
}

bool PyWork::settled() const {
  for (const auto& call : calls_)
    if (!call->done.load(std::memory_order_acquire)) return false;
  return true;
}

py::object PyWork::result() const {
  if (!settled()) fail(ErrorKind::invalid_argument, "the call is not done yet: wait() first");
  return outcome();
}

py::object PyWork::outcome() const {
  for (const auto& call : calls_)
    if (call->error) throw *call->error;
  return result_;
}

static void check_emulated(const EmulatedLinks& links, const Links& model) {
  std::vector<double> times{links.alpha_s, links.lambda_s, links.jitter_s};
  for (const auto& [from_s, betas] : links.rates) times.insert(times.end(), betas.begin(), betas.end());
  for (double seconds : times)
    if (!(seconds >= 0 && seconds <= 60))
      fail(ErrorKind::invalid_argument, "times of emulated links must be in [0, 60] s, got ", seconds);
  if (model.gamma)
    fail(ErrorKind::invalid_argument, "gamma must be 0 on emulated links: reducing is real there");
  if (model.inner_alpha || model.inner_beta || model.inner_lambda)
    fail(ErrorKind::invalid_argument, "the figures inside a node must be 0 on emulated links: they are real");
}

static std::optional<EmulatedLinks> emulated(const std::optional<Emulation>& e, int world) {
  if (!e) return {};
  const Links& l = e->links;
  const size_t count = places(l, world);
  EmulatedLinks links{
      l.kind == Links::Kind::chain, e->half_duplex, l.nodes, l.alpha, l.lambda, e->jitter_s, e->seed};
  for (int rank = 0; l.nodes.empty() && rank < world; ++rank) links.nodes.push_back(rank);
  links.rates.push_back({0, l.betas.empty() ? std::vector<double>(count, l.beta) : l.betas});
  for (const auto& [from_s, betas] : e->script) {
    if (!(from_s > links.rates.back().from_s) || betas.size() != count)
      fail(ErrorKind::invalid_argument, "a script must name ", count, " rates from ascending times on, got ",
           betas.size(), " from ", from_s, " s on");
    links.rates.push_back({from_s, betas});
  }
  links.began_ns = e->began_ns;
  check_emulated(links, l);
  return links;
}

// Where nothing is said all ranks are on one node, and the wire numbers them as we do.
static void complete(Endpoint& endpoint) {
  const auto [rank, world] = std::pair(endpoint.rank, endpoint.world);
  if (world < 1) fail(ErrorKind::invalid_argument, "world must be at least 1, got ", world);
  if (rank < 0 || rank >= world)
    fail(ErrorKind::invalid_argument, "rank must be in [0, ", world, "), got ", rank);
  if (endpoint.nodes.empty()) endpoint.nodes.assign(world, 0);
  if (endpoint.wire_ranks.empty())
    for (int r = 0; r < world; ++r) endpoint.wire_ranks.push_back(r);
  for (const auto& [name, list] : {std::pair("nodes", &endpoint.nodes), {"wire_ranks", &endpoint.wire_ranks}})
    if (list->size() != static_cast<size_t>(world))
      fail(ErrorKind::invalid_argument, name, " must have an entry for each of ", world, " ranks, got ",
           list->size());
  std::map<int, int> numbers;  // nodes are 0, 1, ... in the order of their first ranks
  for (int& node : endpoint.nodes) node = numbers.try_emplace(node, numbers.size()).first->second;
}

PyCommunicator::PyCommunicator(const std::string& transport, Endpoint endpoint, double timeout_s,
                               const std::optional<Emulation>& emulation) {
  forked();
  env(), simd();  // what is wrong there is said here, not in another thread
  const Seconds timeout = seconds(timeout_s);
  if (emulation && endpoint.nodes.empty()) endpoint.nodes = emulation->links.nodes;
  complete(endpoint);
  if (emulation && !emulation->links.nodes.empty() && endpoint.nodes != emulation->links.nodes)
    fail(ErrorKind::invalid_argument, "rank ", endpoint.rank, " of ", endpoint.world,
         " was given nodes, and emulated links between others: leave the nodes to the links");
  const std::optional<EmulatedLinks> links = emulated(emulation, endpoint.world);
  std::shared_ptr<Transport> collectives = open_transport(transport, endpoint, links);
  endpoint.channel = 1;
  auto messages = open_transport(transport, endpoint, links, collectives->clocks());
  const Census* census = collectives->census();
  const uint64_t identity = census ? census->identity : endpoint.identity;
  core_ = {new Communicator(std::move(collectives), std::move(messages),
                            emulation ? concat("emulated(", transport, ")") : transport, endpoint.rank,
                            endpoint.nodes, identity, timeout),
           [](const Communicator* core) {
             if (!forked()) delete core;  // what a child shares is its parent's to close
           }};
  if (emulation) core_->set_links(emulation->links);
  emulation_ = emulation;
  if (links) emulation_->began_ns = began(core_->transport().clocks());
  core_->set_interrupt(interrupted);
  core_->messages().set_interrupt(interrupted);
}

std::string PyCommunicator::where() const {
  return concat(" (rank ", core_->rank(), " of ", core_->world(), ")");
}

Seconds PyCommunicator::timeout(std::optional<double> timeout_s) const {
  return timeout_s ? seconds(*timeout_s) : core_->timeout();
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
         " arrays can not be reduced, only moved (broadcast, all_gather)");
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
  return op;
}

void PyCommunicator::check_writable(const Array& array, const char* what, const char* advice) const {
  if (array.read_only()) fail(ErrorKind::unsupported_type, what, " is read-only", advice);
}

// `out` must not overlap x but where they share the `shared_bytes` at `shared` in full (in place).
void PyCommunicator::check_out(const Array& x, const Array& out, size_t count, const std::byte* shared,
                               size_t shared_bytes) const {
  check_writable(out, "out", "");
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
  if (options.segments && (*options.segments < 1 || *options.segments > 4096))
    fail(ErrorKind::invalid_argument, "segments must be in [1, 4096], got ", *options.segments);
  return {.collective = collective,
          .dtype = x.dtype(),
          .count = x.count(),
          .segments = options.segments.value_or(0),
          .algorithm = std::string(options.algorithm),
          .on_device = !x.on_host(),
          .pack = options.pack};
}

py::handle PyCommunicator::written_by(const Shape& shape, const Arrays& arrays,
                                      const py::object& result) const {
  const bool roots = shape.collective == Collective::broadcast && shape.root == core_->rank();
  return arrays.output && !roots ? py::handle(result) : py::handle(Py_None);
}

py::object PyCommunicator::issue(Shape& shape, Arrays arrays, py::object x, py::object result,
                                 const Options& options) {
  const Seconds limit = timeout(options.timeout_s);
  if (shape.on_device) {
    const Array where(x.is_none() ? result : x, "x", true);
    return issue_on_device(shape, arrays, where, std::move(x), result, options, limit);
  }
  check_apart(x, written_by(shape, arrays, result), options.error);
  arrays.error = error_for(options);
  arrays.lost_sq = options.lost_sq;
  shape.tells_error = arrays.error || arrays.lost_sq;
  const bool chooses = options.algorithm == "auto" && core_->world() > 1;
  if (chooses && options.codec) shape.asked = known_codec(*options.codec).codec;
  if (chooses && !core_->links_known()) measure_links(shape, limit);
  if (options.codec)
    shape.codec = codec_for(shape, *options.codec, arrays, Array(x, "x", true).count(), limit);
  if (chooses && shape.codec) measure_coding(shape, limit);
  if (preparing_) shape = own(std::move(shape));
  return begin(shape, arrays, std::move(x), std::move(result), options, limit);
}

// A short call often ends before the GIL could have been given away and taken back.
void PyCommunicator::run(const Shape& shape, const Arrays& arrays, Seconds limit) {
  std::shared_ptr<Work> begun;
  if (core_->attempt(shape, arrays, limit, begun)) return;
  blocking(*core_, [&] { begun ? core_->await(std::move(begun)) : core_->run(shape, arrays, limit); });
}

py::object PyCommunicator::begin(const Shape& shape, const Arrays& arrays, py::object x, py::object result,
                                 const Options& options, Seconds limit) {
  release_done();
  if (!options.async_op) {
    run(shape, arrays, limit);
    return result;
  }
  std::shared_ptr<Work> work;
  {
    py::gil_scoped_release released;
    work = core_->start(shape, arrays, limit);
  }
  if (!shape.on_device)
    now_in_flight(work, name_of(shape.collective).data(), x, written_by(shape, arrays, result),
                  options.error);
  kept_.push_back({work, std::move(x), result, options.error});
  return py::cast(PyWork(core_, *core_, {std::move(work)}, std::move(result)));
}

void PyCommunicator::release_done() {
  std::erase_if(kept_, [](const Kept& kept) { return ended(*kept.call); });
}

// Once, before the first call that leaves the choice to us; every rank gets here at the same call.
void PyCommunicator::measure_links(const Shape& call, Seconds limit) {
  if (preparing_ || core_->closed()) return;
  prepare(call, [&] { py::module_::import("gpucomm.probe").attr("measure")(py::cast(this), limit.count()); });
}

Shape PyCommunicator::own(Shape call) const {
  if (preparing_) call.before = preparing_, call.purpose = Purpose::preparation;
  return call;
}

// The end of all_reduce, and of reduce on its root.
py::object PyCommunicator::fold(Shape& call, py::object x, const Array& in, py::object out, Factor scale,
                                const Options& options) {
  if (scale || !options.error.is_none()) check_call(call, x, out.is_none() ? x : out, options);
  if (out.is_none()) {
    check_writable(in, "x", ": pass out= to leave it as it is");
    Arrays arrays{in.data(), in.data()};
    arrays.factor = scale;
    return issue(call, arrays, x, x, options);
  }
  const Array to(out, "out", true);
  check_out(in, to, in.count(), in.data(), in.bytes());
  Arrays arrays{in.data(), to.data()};
  if (in.data() == to.data())
    arrays.factor = scale;
  else if (scale)
    multiply(in, to, scale, options), arrays.input = to.data();
  call.in_place = arrays.input == arrays.output;
  return issue(call, arrays, x, out, options);
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
  py::object own = contribution(x, in, scale, arrays);
  return issue(call, arrays, own, x, options);
}

py::object PyCommunicator::barrier(std::optional<double> timeout_s, bool async_op) {
  check_not_forked();
  const Shape nothing{.purpose = Purpose::barrier, .algorithm = "one_shot"};  // of an all_reduce
  return begin(nothing, {}, py::none(), py::none(), {.async_op = async_op}, timeout(timeout_s));
}

void PyCommunicator::abort() {
  if (forked()) return;
  py::gil_scoped_release released;
  core_->abort();
}

std::vector<int> PyCommunicator::survivors(int round, double patience_s) {
  const Seconds patience = seconds(patience_s);
  check_not_forked();
  std::vector<int> ranks;
  blocking(*core_, [&] { ranks = core_->survivors(round, patience); });
  return ranks;
}

void PyCommunicator::close() {
  if (forked()) return;
  {
    py::gil_scoped_release released;
    core_->close();
  }
  try {
    release_done();  // what a device still works on stays as long as this object
  } catch (const Error&) {
    kept_.clear();  // the device has failed
  }
}

void PyCommunicator::end() {
  std::optional<Error> unlike;
  if (!forked()) {
    py::gil_scoped_release released;
    try {
      core_->check_ended_calls();
    } catch (const Error& error) {
      unlike = error;
    }
  }
  close();
  if (unlike) throw *unlike;
}

py::dict PyCommunicator::stats() const {
  const Transport::Counters c = core_->transport_counters();
  py::dict table;
  uint64_t encodes, decodes;
  table["bytes_sent"] = c.bytes_sent, table["bytes_received"] = c.bytes_received;
  table["messages_sent"] = c.messages_sent, table["calls"] = core_->calls();
  table["device_calls"] = core_->device_calls(), table["enqueuing_s"] = core_->enqueuing_s();
  std::tie(encodes, decodes) = core_->codings();
  table["encodes"] = encodes, table["decodes"] = decodes;
  return table;
}

}  // namespace gpucomm
