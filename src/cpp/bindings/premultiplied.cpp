// Contributions times a factor, for premul_sum: in the array that the call reduces, or in memory of their
// own.
#include "base/float_mode.h"
#include "bindings/collectives.h"
#include "bindings/devices.h"
#include "bindings/interpreter.h"
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
  const Released released;
  const StandardFloats floats;
  scale(x.dtype(), target.data(), x.data(), x.count(), *factor);
}

// What this rank contributes where x must be left as it is.
void PyCommunicator::multiply_apart(const Array& in, Factor factor, Arrays& arrays) const {
  if (!factor) return;
  if (in.on_host())
    arrays.factor = factor;  // and begin() makes the call in parts
  else
    arrays.staging = std::make_shared<Staging>(
        Staging{in.dtype(), in.bytes(), {{in.data(), 0, in.bytes()}}, {}, factor, 0, {}, {}});
}

// One after another, within one timeout.
void PyCommunicator::run_parts(const std::vector<PartCall>& parts, Seconds limit) {
  const Clock::time_point end = Clock::now() + clock_time(limit);
  for (const auto& [shape, arrays] : parts)
    run(shape, arrays, std::max(Seconds(1e-3), Seconds(end - Clock::now())));
}

}  // namespace gpucomm
