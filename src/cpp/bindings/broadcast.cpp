#include "base/copy.h"
#include "bindings/collectives.h"
#include "bindings/devices.h"
#include "bindings/interpreter.h"

namespace py = pybind11;

namespace gpucomm {

py::object PyCommunicator::broadcast(py::object x, int root, py::object out, const Options& options) {
  check_root(root);
  const bool roots = core_->rank() == root;
  if (x.is_none() && (roots || out.is_none()))
    fail(ErrorKind::invalid_argument, "x must be an array on the root, rank ", root,
         ", and elsewhere where out is not given; got None");
  if (out.is_none()) out = x;
  if (x.is_none()) x = out;
  const Array in(x, "x", true);
  std::optional<Array> apart;  // most calls have none: an array is borrowed once
  if (!out.is(x)) check_out(in, apart.emplace(out, "out", true), in.count(), in.data(), in.bytes());
  const Array& to = apart ? *apart : in;
  if (!roots && !apart) check_writable(in, "x", ": broadcast writes it on every rank but the root");
  Shape call = shape(Collective::broadcast, in, options);
  call.root = root;
  if (!roots) return issue(call, {to.data(), to.data()}, {out, out, &to, &to}, options);
  if (in.data() != to.data()) {
    Lent both{x, out, &in, &to};
    check_call(call, both, options);
    copy(in, to, options);  // it has its result before anything is sent
  }
  return issue(call, {in.data(), in.data()}, {x, out, &in}, options);
}

// Nothing is written on a closed communicator.
void PyCommunicator::copy(const Array& x, const Array& out, const Options& options) const {
  if (core_->closed() || !x.bytes()) return;
  if (!x.on_host()) return device_of(x, "x")->copy(out.data(), x.data(), x.bytes(), stream_of(options, x));
  const Released released;
  copy_bytes(out.data(), x.data(), x.bytes());
}

}  // namespace gpucomm
