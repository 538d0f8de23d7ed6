// The module _cuda: what CUDA there is, and its devices, which _core takes in capsules. Importing it calls
// nothing of CUDA.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/interpreter.h"
#include "cuda/available.h"
#include "cuda/cuda_device.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm::cuda {

static constexpr const char* kCapsule = "gpucomm.Device";

static py::capsule device_capsule(int index) {
  auto device = std::make_unique<std::shared_ptr<Device>>();
  {
    const Released release;
    *device = open_device(index);
  }
  py::capsule capsule(device.get(), kCapsule, [](PyObject* object) {
    delete static_cast<std::shared_ptr<Device>*>(PyCapsule_GetPointer(object, kCapsule));
  });
  device.release();
  return capsule;
}

}  // namespace gpucomm::cuda

PYBIND11_MODULE(_cuda, m) {
  using namespace gpucomm::cuda;
  m.doc() = "CUDA devices for gpucomm; private: gpucomm.cuda is the public part.";
  m.attr("version") = GPUCOMM_VERSION;
  gpucomm::bind_errors(m);
  m.def("architectures", [] { return GPUCOMM_ARCHITECTURES; }, "Those that its kernels were compiled for.");
  m.def("runtime_version", &runtime_version, "Of the CUDA runtime in this module; 13.0 is 13000.");
  m.def("driver_version", &driver_version, "The newest CUDA that the driver knows; 0: there is no driver.");
  m.def("device_count", &device_count, "The GPUs that this process sees; raises where CUDA cannot be used.");
  m.def("device_name", &device_name, "index"_a, "The name of a GPU.");
  m.def("unavailable", &unavailable, "Why CUDA cannot be used, a sentence; empty: it can.");
  m.def("open_device", &device_capsule, "index"_a, "A device, in a capsule for _core.");
}
