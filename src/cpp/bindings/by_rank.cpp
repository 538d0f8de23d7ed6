// The collectives whose message has a part for every rank: all_gather, reduce_scatter, gather, scatter and
// all_to_all. Parts lie along the first dimension, in rank order.
#include <pybind11/stl.h>

#include "bindings/collectives.h"
#include "bindings/names.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

std::string text(const std::vector<int64_t>& shape) {
  std::string out = "(";
  for (int64_t n : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
  return out + ")";
}

int64_t rows_of(const Array& x) { return x.shape().empty() ? 1 : x.shape()[0]; }

}  // namespace

// A new array like x, but with `rows` in the first dimension.
py::object PyCommunicator::allocate(py::object x, const Array& like, int64_t rows) const {
  std::vector<int64_t> extents = like.shape();
  if (extents.empty()) extents = {1};
  extents[0] = rows;
  return py::module_::import("gpucomm.arrays").attr("empty_like")(x, py::tuple(py::cast(extents)));
}

// Rows that each rank has of an x that holds those of all ranks.
int64_t PyCommunicator::share_of(const Array& x) const {
  if (rows_of(x) % core_->world())
    fail(ErrorKind::invalid_argument, "the first extent of x must be a multiple of the world, ",
         core_->world(), "; got shape ", text(x.shape()));
  return rows_of(x) / core_->world();
}

py::object PyCommunicator::all_gather(py::object x, py::object out, const Options& options) {
  const Array in(x, "x");
  Shape call = shape(Collective::all_gather, in, options);
  call.count = in.count() * core_->world();
  if (out.is_none()) out = allocate(x, in, rows_of(in) * core_->world());
  const Array to(out, "out");
  const std::byte* own = to.data() + core_->rank() * in.bytes();
  check_out(in, to, call.count, own, in.bytes());
  call.in_place = in.data() == own && in.bytes();
  return issue(call, {in.data(), to.data()}, x, out, options);
}

py::object PyCommunicator::gather(py::object x, int root, py::object out, const Options& options) {
  const Array in(x, "x");
  check_root(root);
  Shape call = shape(Collective::gather, in, options);
  call.count = in.count() * core_->world(), call.root = root;
  if (core_->rank() != root) {
    call.in_place = false;
    return issue(call, {in.data(), nullptr}, x, py::none(), options);
  }
  if (out.is_none()) out = allocate(x, in, rows_of(in) * core_->world());
  const Array to(out, "out");
  const std::byte* own = to.data() + root * in.bytes();
  check_out(in, to, call.count, own, in.bytes());
  call.in_place = in.data() == own && in.bytes();
  return issue(call, {in.data(), to.data()}, x, out, options);
}

py::object PyCommunicator::reduce_scatter(py::object x, const std::string& op, py::object out,
                                          const Options& options) {
  const Array in(x, "x");
  check_reducible(in, op);
  const int64_t share = share_of(in);
  Shape call = shape(Collective::reduce_scatter, in, options);
  call.op = parse_op(op);
  if (out.is_none()) out = allocate(x, in, share);
  const Array to(out, "out");
  std::byte* own = in.data() + core_->rank() * to.bytes();
  check_out(in, to, in.count() / core_->world(), own, to.bytes());
  call.in_place = to.data() == own && to.bytes();
  if (call.in_place) check_writable(in, "x", "");
  return issue(call, {in.data(), to.data()}, x, out, options);
}

py::object PyCommunicator::scatter(py::object x, int root, py::object out, const Options& options) {
  check_root(root);
  if (x.is_none() && core_->rank() == root)
    fail(ErrorKind::invalid_argument, "x must be an array on the root, rank ", root, "; got None");
  if (x.is_none() && out.is_none())
    fail(ErrorKind::invalid_argument, "out is needed where x is None: nothing else tells how much comes");
  if (out.is_none()) {
    const Array like(x, "x");
    out = allocate(x, like, share_of(like));
  }
  const Array to(out, "out");
  Shape call = shape(Collective::scatter, to, options);
  call.count = to.count() * core_->world(), call.root = root;
  if (core_->rank() != root) {
    check_writable(to, "out", "");
    call.in_place = false;
    return issue(call, {nullptr, to.data()}, x, out, options);
  }
  const Array in(x, "x");
  share_of(in);
  std::byte* own = in.data() + root * to.bytes();
  check_out(in, to, in.count() / core_->world(), own, to.bytes());
  call.in_place = to.data() == own && to.bytes();
  return issue(call, {in.data(), to.data()}, x, out, options);
}

py::object PyCommunicator::all_to_all(py::object x, py::object out, const Options& options) {
  const Array in(x, "x");
  share_of(in);
  Shape call = shape(Collective::all_to_all, in, options);
  if (out.is_none()) out = allocate(x, in, rows_of(in));
  const Array to(out, "out");
  check_out(in, to, in.count(), in.data(), in.bytes());
  call.in_place = in.data() == to.data();
  return issue(call, {in.data(), to.data()}, x, out, options);
}

}  // namespace gpucomm
