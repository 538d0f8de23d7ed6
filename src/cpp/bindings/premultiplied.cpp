// Contributions times a factor, for premul_sum: in the array that the call reduces, or in memory of their
// own.
#include "bindings/collectives.h"
#include "bindings/devices.h"
#include "engine/staging.h"
#include "reduce/scale.h"

namespace py = pybind11;

namespace gpucomm {

// A pass of its own: builders send the input as it is. Nothing is written on a closed communicator.
void PyCommunicator::multiply(const Array& x, const Array& target, Factor factor,
                              const Options& options) const {
  if (!factor || core_->closed()) return;
  if (!x.on_host())
    return device_of(x, "x")->scale(x.dtype(), target.data(), x.data(), x.count(), *factor,
                                    stream_of(options, x));
  py::gil_scoped_release released;
  scale(x.dtype(), target.data(), x.data(), x.count(), *factor);
}

// What this rank contributes where x must be left as it is: sets the call's input, returns what holds it.
py::object PyCommunicator::contribution(py::object x, const Array& in, Factor factor, Arrays& arrays) const {
  if (!factor) return x;
  if (!in.on_host()) {
    arrays.staging = std::make_shared<Staging>(
        Staging{in.dtype(), in.bytes(), {{in.data(), 0, in.bytes()}}, {}, factor, 0, {}});
    return x;
  }
  py::object copy = allocate(x, in, in.shape().empty() ? 1 : in.shape()[0]);
  const Array target(copy, "x");
  arrays.input = target.data();
  py::gil_scoped_release released;
  scale(in.dtype(), target.data(), in.data(), in.count(), *factor);
  return copy;
}

}  // namespace gpucomm
