// Devices as Python sees them: CUDA's come from the other extension, those of the host are made here.
#include <map>

#include "bindings/bind.h"
#include "bindings/devices.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

// GPUs, by their index; never ended, for CUDA may end before us.
std::map<int32_t, std::shared_ptr<Device>>& gpus() {
  static auto* devices = new std::map<int32_t, std::shared_ptr<Device>>;
  return *devices;
}

std::shared_ptr<Device> gpu(int32_t index) {
  if (!gpus().contains(index)) py::module_::import("gpucomm.cuda").attr("device")(index);
  return gpus().at(index);
}

std::shared_ptr<Device> add_gpu(int32_t index, const py::capsule& capsule) {
  return gpus().try_emplace(index, *capsule.get_pointer<std::shared_ptr<Device>>()).first->second;
}

}  // namespace

std::shared_ptr<Device> device_of(const Array& array, const char* what) {
  const dlpack::Device place = array.place();
  if (place.type == dlpack::kCuda) return gpu(place.id);
  auto device = place.type == dlpack::kExtension ? host_device(place.id) : nullptr;
  if (!device)
    fail(ErrorKind::unsupported_type, what, " is on a device of DLPack type ", place.type, " (number ",
         place.id, "); gpucomm moves arrays in host memory and in that of CUDA devices");
  return device;
}

void bind_devices(py::module_& m) {
  py::class_<Device, std::shared_ptr<Device>> device(m, "Device",
                                                     "Memory and streams of work, on CUDA or on the host.");
  bind_work_of_devices(device);
  m.attr("norm_parts") = kNormParts;
  m.def("add_gpu", &add_gpu, "index"_a, "capsule"_a,
        "Makes a device of gpucomm._cuda the one of this index, where there is none yet; returns that one.");
  bind_host_device(m);
}

}  // namespace gpucomm
