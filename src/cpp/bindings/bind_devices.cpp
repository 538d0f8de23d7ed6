// Devices as Python sees them: CUDA's come from the other extension, those of the host are made here, with
// arrays that say that they are on them.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <map>
#include <tuple>
#include <vector>

#include "bindings/bind.h"
#include "bindings/devices.h"
#include "bindings/names.h"
#include "devices/host_device.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

using Address = uintptr_t;

// Those of the host, by the number that their arrays carry.
std::map<int32_t, std::weak_ptr<Device>>& host_devices() {
  static std::map<int32_t, std::weak_ptr<Device>> devices;
  return devices;
}

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

// An array of NumPy, of which DLPack says that it is on a host device. It keeps both.
struct DeviceArray {
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

dlpack::DataType type_of(const DeviceArray& array) {
  static const std::map<char, uint8_t> codes = {{'i', 0}, {'u', 1}, {'f', 2}, {'c', 5}, {'b', 6}};
  const auto bits = static_cast<uint8_t>(8 * array.values.itemsize());
  return {array.bfloat16 ? uint8_t{4} : codes.at(array.values.dtype().kind()), bits, 1};
}

py::capsule export_array(const DeviceArray& array) {
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
  py::class_<DeviceArray>(m, "HostDeviceArray", "A NumPy array that DLPack calls one of a host device.")
      .def(
          "__dlpack__",
          [](const DeviceArray& array, const py::object&, const py::object&) { return export_array(array); },
          py::kw_only(), "stream"_a = py::none(), "max_version"_a = py::none())
      .def("__dlpack_device__",
           [](const DeviceArray& array) { return py::make_tuple(dlpack::kExtension, array.device); })
      .def(
          "new_empty",
          [](const DeviceArray& array, const std::vector<py::ssize_t>& shape) {
            return DeviceArray{py::array(array.values.dtype(), shape), array.device, array.bfloat16};
          },
          "shape"_a, "An uninitialised array of this dtype and device.")
      .def_readonly("values", &DeviceArray::values, "The array, as the host reads it.");
}

std::byte* pointer(Address address) { return reinterpret_cast<std::byte*>(address); }
void* handle(Address address) { return reinterpret_cast<void*>(address); }

// The work of a device one by one, for tests and benchmarks; memory, streams and events are addresses.
void bind_work_of_devices(py::class_<Device, std::shared_ptr<Device>>& type) {
  type.def("name", &Device::name, "As error texts name it.")
      .def("shares", &Device::shares, py::call_guard<py::gil_scoped_release>(),
           "Why other processes cannot open its memory, or nothing.")
      .def(
          "make_stream", [](Device& d) { return reinterpret_cast<Address>(d.make_stream()); },
          "A stream's handle.")
      .def(
          "end_stream",
          [](Device& d, Address s) {
            py::gil_scoped_release r;
            d.end_stream(handle(s));
          },
          "stream"_a, "Ends a stream of make_stream.")
      .def(
          "make_event", [](Device& d) { return reinterpret_cast<Address>(d.make_event()); },
          "An event's handle.")
      .def(
          "end_event", [](Device& d, Address e) { d.end_event(handle(e)); }, "event"_a,
          "Ends an event of make_event.")
      .def(
          "record", [](Device& d, Address e, Address s) { d.record(handle(e), handle(s)); }, "event"_a,
          "stream"_a = 0, "The event is done when all is that the stream holds now.")
      .def(
          "wait", [](Device& d, Address s, Address e) { d.wait(handle(s), handle(e)); }, "stream"_a,
          "event"_a, "What the stream gets from now on comes after the event as it was last recorded.")
      .def(
          "done", [](Device& d, Address e) { return d.done(handle(e)); }, "event"_a,
          "Whether what the event was recorded behind has ended.")
      .def(
          "copy",
          [](Device& d, Address to, Address from, size_t n, Address s) {
            d.copy(pointer(to), pointer(from), n, handle(s));
          },
          "to"_a, "source"_a, "nbytes"_a, "stream"_a = 0, "Enqueues a copy.")
      .def(
          "reduce",
          [](Device& d, Text dtype, Text op, const std::vector<Address>& to, const std::vector<Address>& from,
             size_t count, int divisor, Address s) {
            Fold fold{parse_dtype(dtype), parse_op(op), divisor, {}, {}, count};
            for (const Address a : to) fold.destinations.push_back(pointer(a));
            for (const Address a : from) fold.sources.push_back(pointer(a));
            d.reduce(fold, handle(s));
          },
          "dtype"_a, "op"_a, "to"_a, "sources"_a, "count"_a, "divisor"_a = 1, "stream"_a = 0,
          "Enqueues a fold of the sources, in their order, into each of `to`.")
      .def(
          "copy_all",
          [](Device& d, const std::vector<std::tuple<Address, Address, size_t>>& all, Address s) {
            std::vector<Copy> copies;
            for (const auto& [to, from, bytes] : all) copies.push_back({pointer(to), pointer(from), bytes});
            d.copy_all(copies, handle(s));
          },
          "copies"_a, "stream"_a = 0,
          "Enqueues copies side by side: of each where to, where from, and how many bytes.")
      .def(
          "scale",
          [](Device& d, Text dtype, Address to, Address from, size_t count, double factor, Address s) {
            d.scale(parse_dtype(dtype), pointer(to), pointer(from), count, factor, handle(s));
          },
          "dtype"_a, "to"_a, "source"_a, "count"_a, "factor"_a, "stream"_a = 0,
          "Enqueues a multiplication of floats.")
      .def(
          "convert",
          [](Device& d, Text from, Address in, Text to, Address out, size_t count, Address s) {
            d.convert(parse_dtype(from), pointer(in), parse_dtype(to), pointer(out), count, handle(s));
          },
          "source_dtype"_a, "source"_a, "dtype"_a, "to"_a, "count"_a, "stream"_a = 0,
          "Enqueues floats of up to 32 bits from one dtype to another, each rounded once.")
      .def(
          "difference",
          [](Device& d, Text dtype, Address dense, Address error, int times, size_t count, Address s) {
            d.difference(parse_dtype(dtype), pointer(dense), pointer(error), times, count, handle(s));
          },
          "dtype"_a, "dense"_a, "error"_a, "times"_a, "count"_a, "stream"_a = 0,
          "Enqueues error = times (dense - error), as codings tell what they lose.")
      .def(
          "add_squares",
          [](Device& d, Text dtype, Address x, size_t count, Address parts, unsigned blocks, Address became,
             int times, Address s) {
            d.add_squares({parse_dtype(dtype), pointer(x), count, blocks, pointer(became), times},
                          pointer(parts), handle(s));
          },
          "dtype"_a, "x"_a, "count"_a, "parts"_a, "blocks"_a = 1, "became"_a = 0, "times"_a = 1,
          "stream"_a = 0,
          "Enqueues sums of squares of x, for block sizes that are bits of `blocks`, or of times (became - "
          "x).")
      .def(
          "encode",
          [](Device& d, Text codec, Text dtype, Address dense, size_t count, Address slot, Address s) {
            d.encode({parse_codec(codec), parse_dtype(dtype), count}, pointer(dense), pointer(slot),
                     handle(s));
          },
          "codec"_a, "dtype"_a, "dense"_a, "count"_a, "slot"_a, "stream"_a = 0,
          "Enqueues an encoding: 8 bytes with the number of coded bytes, then these.")
      .def(
          "decode",
          [](Device& d, Text codec, Text dtype, Address slot, Address dense, size_t count, bool adds,
             int divisor, Address s) {
            d.decode({parse_codec(codec), parse_dtype(dtype), count}, pointer(slot), pointer(dense), adds,
                     divisor, handle(s));
          },
          "codec"_a, "dtype"_a, "slot"_a, "dense"_a, "count"_a, "adds"_a = false, "divisor"_a = 1,
          "stream"_a = 0, "Enqueues a decoding of what encode made.")
      .def(
          "recode",
          [](Device& d, Text codec, Text dtype, Address from, Address own, size_t count, Address to,
             Address s) {
            d.recode_all(
                {{{parse_codec(codec), parse_dtype(dtype), count}, pointer(from), pointer(own), pointer(to)}},
                handle(s));
          },
          "codec"_a, "dtype"_a, "source"_a, "own"_a, "count"_a, "to"_a, "stream"_a = 0,
          "Enqueues to = coded (decoded source + own).")
      .def(
          "add_coded",
          [](Device& d, Text codec, Text dtype, Address from, Address into, size_t count, Address s) {
            d.add_coded({parse_codec(codec), parse_dtype(dtype), count}, pointer(from), pointer(into),
                        handle(s));
          },
          "codec"_a, "dtype"_a, "source"_a, "into"_a, "count"_a, "stream"_a = 0,
          "Enqueues into += source, both coded by an additive codec.")
      .def("failure", &Device::failure, "What went wrong in work that has run, or nothing.");
}

}  // namespace

std::shared_ptr<Device> device_of(const Array& array, const char* what) {
  const dlpack::Device place = array.place();
  if (place.type == dlpack::kCuda) return gpu(place.id);
  const auto known = host_devices().find(place.id);
  auto device = known == host_devices().end() ? nullptr : known->second.lock();
  if (place.type != dlpack::kExtension || !device)
    fail(ErrorKind::unsupported_type, what, " is on a device of DLPack type ", place.type, " (number ",
         place.id, "); gpucomm moves arrays in host memory and in that of CUDA devices");
  return device;
}

void bind_devices(py::module_& m) {
  bind_arrays(m);
  py::class_<Device, std::shared_ptr<Device>> device(m, "Device",
                                                     "Memory and streams of work, on CUDA or on the host.");
  bind_work_of_devices(device);
  m.attr("norm_parts") = kNormParts;
  m.def("add_gpu", &add_gpu, "index"_a, "capsule"_a,
        "Makes a device of gpucomm._cuda the one of this index, where there is none yet; returns that one.");
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
            static int32_t next = 0;
            int32_t number = -1;
            for (const auto& [known, device] : host_devices())
              if (device.lock() == self) number = known;
            if (number < 0) host_devices()[number = next++] = self;
            return DeviceArray{values, number, bfloat16};
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
