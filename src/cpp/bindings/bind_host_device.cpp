// The host device, with arrays that say that they are on one.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <map>
#include <vector>

#include "bindings/devices.h"
#include "devices/host_device.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

// By the number that their arrays carry.
std::map<int32_t, std::weak_ptr<HostDevice>>& host_devices() {
  static std::map<int32_t, std::weak_ptr<HostDevice>> devices;
  return devices;
}

int32_t number_of(const std::shared_ptr<HostDevice>& device) {
  static int32_t next = 0;
  for (const auto& [number, known] : host_devices())
    if (known.lock() == device) return number;
  host_devices()[next] = device;
  return next++;
}

// An array of NumPy, of which DLPack says that it is on a host device. It keeps both.
struct HostArray {
  py::array values;
  int32_t device;
  bool bfloat16;  // NumPy has no such dtype: the values are uint16
};

// What DLPack hands over keeps this until its consumer lets go.
struct Export {
  dlpack::Managed managed;
  py::object values;
  std::vector<int64_t> shape;
};

dlpack::DataType type_of(const HostArray& array) {
  static const std::map<char, uint8_t> codes = {{'i', 0}, {'u', 1}, {'f', 2}, {'c', 5}, {'b', 6}};
  const auto bits = static_cast<uint8_t>(8 * array.values.itemsize());
  return {array.bfloat16 ? uint8_t{4} : codes.at(array.values.dtype().kind()), bits, 1};
}

py::capsule export_array(const HostArray& array) {
  const py::array& values = array.values;
  auto* out = new Export{{}, values, {values.shape(), values.shape() + values.ndim()}};
  dlpack::Tensor& tensor = out->managed.tensor;
  tensor.data = const_cast<void*>(values.data());
  tensor.device = {dlpack::kExtension, array.device};
  tensor.ndim = static_cast<int32_t>(values.ndim());
  tensor.dtype = type_of(array), tensor.shape = out->shape.data();
  out->managed.context = out;
  out->managed.deleter = [](dlpack::Managed* managed) { delete static_cast<Export*>(managed->context); };
  return py::capsule(&out->managed, "dltensor", [](PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return PyErr_Clear();
    auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
  });
}

void bind_arrays(py::module_& m) {
  py::class_<HostArray>(m, "HostDeviceArray", "A NumPy array that DLPack calls one of a host device.")
      .def(
          "__dlpack__",
          [](const HostArray& array, const py::object&, const py::object&) { return export_array(array); },
          py::kw_only(), "stream"_a = py::none(), "max_version"_a = py::none())
      .def("__dlpack_device__",
           [](const HostArray& array) { return py::make_tuple(dlpack::kExtension, array.device); })
      .def(
          "new_empty",
          [](const HostArray& array, const std::vector<py::ssize_t>& shape) {
            return HostArray{py::array(array.values.dtype(), shape), array.device, array.bfloat16};
          },
          "shape"_a, "An uninitialised array of this dtype and device.")
      .def_readonly("values", &HostArray::values, "The array, as the host reads it.");
}

}  // namespace

std::shared_ptr<Device> host_device(int32_t number) {
  const auto known = host_devices().find(number);
  return known == host_devices().end() ? nullptr : known->second.lock();
}

void bind_host_device(py::module_& m) {
  bind_arrays(m);
  py::class_<HostGraph, std::shared_ptr<HostGraph>>(m, "HostGraph",
                                                    "Work of a host device, to run again and again.");
  py::class_<HostDevice, Device, std::shared_ptr<HostDevice>>(
      m, "HostDevice", "A device made of threads, on which what uses devices is tested without a GPU.")
      .def(py::init([](int deferred_us, bool shares, bool opens) {
             return std::make_shared<HostDevice>(std::chrono::microseconds(deferred_us), shares, opens);
           }),
           "deferred_us"_a = 0, "shares"_a = true, "opens"_a = true,
           "deferred_us: each piece of work starts after a pause of up to so long. shares: whether there are "
           "handles\nof its memory for other processes. opens: whether it can open theirs.")
      .def(
          "array",
          [](const std::shared_ptr<HostDevice>& self, const py::array& values, bool bfloat16) {
            return HostArray{values, number_of(self), bfloat16};
          },
          "values"_a, "bfloat16"_a = false, "A C-contiguous array as one of this device: no copy.")
      .def(
          "begin_capture", [](HostDevice& d, Address s) { d.begin_capture(handle(s)); }, "stream"_a,
          "What the stream gets from here on is kept for a graph, by CUDA's rules.")
      .def(
          "end_capture", [](HostDevice& d, Address s) { return d.end_capture(handle(s)); }, "stream"_a,
          "The graph.")
      .def(
          "launch",
          [](HostDevice& d, const std::shared_ptr<HostGraph>& graph, Address s) {
            d.launch(graph, handle(s));
          },
          "graph"_a, "stream"_a, "Enqueues all work of a graph, in an order that it allows.")
      .def_static(
          "stream_function", [] { return reinterpret_cast<Address>(&HostDevice::call); },
          "The address of a C function (stream, function, argument) that makes a stream call the function.")
      .def("break_down", &HostDevice::break_down, "Throws from here on, as CUDA after an illegal access.")
      .def("withhold", &HostDevice::withhold,
           "From here on other devices are told that they cannot use its arrays.")
      .def("enqueued", &HostDevice::enqueued, "kind"_a, "Pieces of work so far: \"copy\", \"reduce\", ...");
}

}  // namespace gpucomm
