// The collectives whose message has a part for every rank: all_gather, reduce_scatter, gather, scatter and
// all_to_all. Parts lie along the first dimension, in rank order.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/collectives.h"
#include "bindings/names.h"
#include "bindings/texts.h"

namespace py = pybind11;

namespace gpucomm {

// x.new_empty(extents...)
static py::object new_empty(py::handle x, const std::vector<int64_t>& extents) {
  static PyObject* const name = PyUnicode_InternFromString("new_empty");
  std::vector<py::object> sizes;
  std::vector<PyObject*> arguments{x.ptr()};
  for (const int64_t extent : extents) arguments.push_back(sizes.emplace_back(py::int_(extent)).ptr());
  PyObject* const made = PyObject_VectorcallMethod(name, arguments.data(), arguments.size(), nullptr);
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// By Python; what an array's library refuses is an argument refused.
static py::object empty_like(py::handle x, const std::vector<int64_t>& extents,
                             std::optional<uintptr_t> stream) {
  try {
    return py::module_::import("gpucomm.arrays").attr("empty_like")(x, py::tuple(py::cast(extents)), stream);
  } catch (const py::error_already_set& error) {
    if (!error.matches(py::module_::import("gpucomm.errors").attr("UnsupportedTypeError"))) throw;
    fail(ErrorKind::unsupported_type, said_by(error, std::string::npos));
  }
}

// A new array like x, but with `rows` in the first dimension; torch's, on a GPU, for use on a stream that was
// given.
py::object PyCommunicator::allocate(py::object x, const Array& like, int64_t rows,
                                    std::optional<uintptr_t> stream) const {
  std::vector<int64_t> extents(like.shape().begin(), like.shape().end());
  if (extents.empty()) extents.resize(1);
  extents[0] = rows;
  // The way through Python takes longer than a short message does.
  if (Py_IS_TYPE(x.ptr(), reinterpret_cast<PyTypeObject*>(py::detail::npy_api::get().PyArray_Type_)))
    return py::array(x.attr("dtype").cast<py::dtype>(), extents);
  if (like.tensor() && like.on_host()) return new_empty(x, extents);
  if (like.place().type != dlpack::kCuda) stream.reset();
  py::object made = empty_like(x, extents, stream);
  const char* const advice = ": pass out= for the result";
  check_writable(Array(made, "the result", true), "a new array like x", advice);
  return made;
}

Shape PyCommunicator::shape(Collective collective, const Array& x, const Parts& parts,
                            const Options& options) const {
  Shape call = shape(collective, x, options);
  call.count = parts.total(), call.counts = parts.uneven();
  return call;
}

// The end of all_gather and of gather on its root: `x` comes into `out`.
py::object PyCommunicator::collect(Shape& call, const Parts& parts, py::object x, const Array& in,
                                   py::object out, const Options& options) {
  if (out.is_none()) out = allocate(x, in, parts.total_rows(), options.stream);
  const Array to(out, "out", true);
  const std::byte* own = to.data() + parts.begin(core_->rank()) * size_of(in.dtype());
  check_out(in, to, parts.total(), own, in.bytes());
  call.in_place = in.data() == own && in.bytes();
  return issue(call, {in.data(), to.data()}, {x, out, &in, &to}, options);
}

py::object PyCommunicator::all_gather(py::object x, py::object out, const Counts& counts,
                                      const Options& options) {
  const Array in(x, "x", true);
  const Parts parts = joined(in, counts, core_->world(), core_->rank());
  Shape call = shape(Collective::all_gather, in, parts, options);
  return collect(call, parts, x, in, out, options);
}

py::object PyCommunicator::gather(py::object x, int root, py::object out, const Counts& counts,
                                  const Options& options) {
  const Array in(x, "x", true);
  check_root(root);
  const Parts parts = joined(in, counts, core_->world(), core_->rank());
  Shape call = shape(Collective::gather, in, parts, options);
  call.root = root;
  if (core_->rank() == root) return collect(call, parts, x, in, out, options);
  call.in_place = false;
  return issue(call, {in.data(), nullptr}, {x, py::none(), &in}, options);
}

py::object PyCommunicator::reduce_scatter(py::object x, Text op, py::object out, Factor scale,
                                          const Counts& counts, const Options& options) {
  const Array in(x, "x", true);
  const Op folding = reducing(in, op, scale);
  const int rank = core_->rank();
  const Parts parts = divided(in, counts, core_->world());
  Shape call = shape(Collective::reduce_scatter, in, parts, options);
  call.op = folding, call.dtype = folded_as(call.dtype);
  if (out.is_none()) out = allocate(x, in, parts.rows(rank), options.stream);
  const Array to(out, "out", true);
  std::byte* own = in.data() + parts.begin(rank) * size_of(in.dtype());
  check_out(in, to, parts.count(rank), own, to.bytes());
  call.in_place = to.data() == own && to.bytes();
  if (call.in_place) check_writable(in, "x");
  check_has_codec(options);
  Lent lent{x, out, &in, &to};
  if (scale || !options.error.is_none()) check_call(call, lent, options);
  Arrays arrays{in.data(), to.data()};
  multiply_apart(in, scale, arrays);
  call.in_place = call.in_place && !scale;
  return issue(call, arrays, std::move(lent), options);
}

py::object PyCommunicator::scatter(py::object x, int root, py::object out, const Options& options) {
  check_root(root);
  if (x.is_none() && core_->rank() == root)
    fail(ErrorKind::invalid_argument, "x must be an array on the root, rank ", root, "; got None");
  if (x.is_none() && out.is_none())
    fail(ErrorKind::invalid_argument, "out is needed where x is None: nothing else tells how much comes");
  const bool is_root = core_->rank() == root;
  std::optional<Array> in;
  if (is_root || out.is_none()) in.emplace(x, "x", true);
  if (out.is_none()) out = allocate(x, *in, divided(*in, {}, core_->world()).each, options.stream);
  const Array to(out, "out", true);
  Shape call = shape(Collective::scatter, to, options);
  call.count = to.count() * core_->world(), call.root = root;
  if (!is_root) {
    check_writable(to, "out");
    call.in_place = false;
    return issue(call, {nullptr, to.data()}, {x, out, nullptr, &to}, options);
  }
  const Parts parts = divided(*in, {}, core_->world());
  std::byte* own = in->data() + parts.begin(root) * size_of(in->dtype());
  check_out(*in, to, parts.count(root), own, to.bytes());
  call.in_place = to.data() == own && to.bytes();
  return issue(call, {in->data(), to.data()}, {x, out, &*in, &to}, options);
}

// What the other ranks send here, from what each sends to each: a small all_to_all of its own.
std::vector<int64_t> PyCommunicator::exchange(const std::vector<int64_t>& sent, const Options& options) {
  const Shape call = side_shape(Collective::all_to_all, Dtype::int64, sent.size(), "direct");
  std::vector<int64_t> received(sent.size());
  const Seconds limit = timeout(options.timeout_s);
  const Arrays arrays{reinterpret_cast<const std::byte*>(sent.data()),
                      reinterpret_cast<std::byte*>(received.data())};
  blocking(*core_, [&] { core_->run(call, arrays, limit); });
  return received;
}

// Sets what the ranks do not know of each other; returns what comes here.
Parts PyCommunicator::agree(Shape& call, const Parts& sent, const Counts& out_counts,
                            const Options& options) {
  const int rank = core_->rank();
  Parts received = sent;
  if (out_counts) received = given(*out_counts, "out_counts", core_->world(), sent.row);
  if (received.rows(rank) != sent.rows(rank))
    fail(ErrorKind::invalid_argument, "counts and out_counts must be equal at this rank's own place, got ",
         sent.rows(rank), " and ", received.rows(rank));
  if (!out_counts) received.counts = exchange(sent.counts, options);
  call.counts = sent.elements(), call.out_counts = received.elements();
  return received;
}

py::object PyCommunicator::all_to_all(py::object x, py::object out, const Counts& counts,
                                      const Counts& out_counts, const Options& options) {
  const Array in(x, "x", true);
  const bool even = !counts && !out_counts;
  const Parts sent = divided(in, counts, core_->world());
  Shape call = shape(Collective::all_to_all, in, options);
  std::optional<Array> to;
  if (!out.is_none()) to.emplace(out, "out", true);
  if (!even && to && to->overlaps(in))
    fail(ErrorKind::invalid_argument, "x and out must be apart where counts or out_counts are given");
  const Parts received = even ? sent : agree(call, sent, out_counts, options);
  if (!to) to.emplace(out = allocate(x, in, received.total_rows(), options.stream), "out", true);
  check_out(in, *to, received.total(), in.data(), in.bytes());
  call.in_place = even && in.data() == to->data();
  return issue(call, {in.data(), to->data()}, {x, out, &in, &*to}, options);
}

}  // namespace gpucomm
