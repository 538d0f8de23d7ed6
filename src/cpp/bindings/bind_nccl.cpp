// NCCL's library and its communicators, for gpucomm.nccl and for tests: arrays are those of the given device,
// as the caller says.
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <thread>

#include "bindings/array.h"
#include "bindings/bind.h"
#include "bindings/devices.h"
#include "bindings/interpreter.h"
#include "bindings/names.h"
#include "devices/handles.h"
#include "engine/nccl_call.h"
#include "engine/nccl_native.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

using Library = std::shared_ptr<const NcclLibrary>;

// A communicator with a stream and scratch of its own; calls wait for their end.
struct PyNccl {
  std::shared_ptr<Device> device;
  std::unique_ptr<NcclCommunicator> communicator;
  OwnStream stream;
  OwnEvent event, idle_event;
  OwnMemory scratch;

  PyNccl(std::shared_ptr<Device> on, std::unique_ptr<NcclCommunicator> made)
      : device(std::move(on)),
        communicator(std::move(made)),
        stream(make_stream(device)),
        event(make_event(device)),
        idle_event(make_event(device)) {}

  void finish(const Deadline& deadline) {
    communicator->settle(deadline);
    device->record(event.get(), stream.get());
    communicator->wait(event.get(), deadline);
    const std::string failure = device->failure();
    if (!failure.empty()) fail(ErrorKind::invalid_argument, failure);
  }
};

// An array of the communicator's device.
class DeviceArray : public Array {
 public:
  DeviceArray(const PyNccl& self, py::handle object, const char* what) : Array(object, what, true) {
    const auto device = device_of(*this, what);
    if (device != self.device)
      fail(ErrorKind::invalid_argument, what, " is on ", device->name(), ", the communicator on ",
           self.device->name());
  }
};

nccl::UniqueId id_of(const py::bytes& bytes) {
  const std::string_view text = bytes;
  nccl::UniqueId id;
  if (text.size() != sizeof id.internal)
    fail(ErrorKind::invalid_argument, "a unique id has ", sizeof id.internal, " bytes, got ", text.size());
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  return id;
}

std::unique_ptr<PyNccl> make(const Library& library, const std::shared_ptr<Device>& device,
                             const py::bytes& bytes, int rank, int world, double timeout) {
  const nccl::UniqueId id = id_of(bytes);
  const Released release;
  const Deadline deadline(timeout);
  auto made = std::make_unique<NcclCommunicator>(library, device, id, rank, world);
  made->settle(deadline);
  return std::make_unique<PyNccl>(device, std::move(made));
}

std::unique_ptr<PyNccl> split(PyNccl& self, int color, int key, double timeout) {
  auto made = self.communicator->split(color, key, Deadline(timeout));
  return made ? std::make_unique<PyNccl>(self.device, std::move(made)) : nullptr;
}

// all_gather's out and reduce_scatter's x have world times as many elements as the other.
void require_fit(Text name, Collective collective, const Array& in, const Array& to, size_t world) {
  const size_t one = gathers(collective) ? to.count() : in.count();  // what may be all ranks' parts ...
  const size_t part = gathers(collective) ? in.count() : to.count();
  const bool split = gathers(collective) || scatters(collective);  // ... or is as long as the other
  if (one != (split ? part * world : part) || in.dtype() != to.dtype())
    fail(ErrorKind::invalid_argument, "x has ", in.count(), " elements and out ", to.count(),
         ", which does not fit ", name, " of ", world, " ranks");
}

// One call of NCCL's own.
void native(PyNccl& self, Text name, py::handle x, py::handle out, Text op_name, int root, double timeout) {
  const auto collective = parse<Collective>("collective", name, kCollectiveNames);
  const DeviceArray in(self, x, "x"), to(self, out, "out");
  require_fit(name, collective, in, to, self.communicator->world());
  Shape shape{.collective = collective, .op = parse_op(op_name), .dtype = in.dtype()};
  shape.count = std::max(in.count(), to.count());
  shape.root = root;
  const Released release;
  const Deadline deadline(timeout);
  enqueue_native(shape, {in.data(), to.data()}, *self.communicator, self.stream.get());
  self.finish(deadline);
}

// The elements of the whole message, of which x or out may be one rank's.
size_t message_count(Collective collective, const Array* in, const Array* out, int world) {
  if (gathers(collective)) return in->count() * world;
  if (collective == Collective::scatter) return out->count() * world;
  return in->count();
}

void run_plan(PyNccl& self, const Shape& shape, const Arrays& arrays, const std::vector<int>& nodes,
              double timeout) {
  NcclCommunicator& c = *self.communicator;
  const Released release;
  const Deadline deadline(timeout);
  const Grouped grouped = compile_grouped(shape, nodes, c.rank());
  const Program& program = grouped.program;
  if (self.scratch.bytes() < program.scratch_bytes) self.scratch = {self.device, program.scratch_bytes};
  std::byte* const scratch = self.scratch.get();
  const Spaces spaces = spaces_of(program, arrays, scratch);
  NcclCall call(grouped, {program, spaces, *self.device, self.stream.get()}, scratch);
  while (call.advance(&c)) c.settle(deadline);
  self.finish(deadline);
}

void run(PyNccl& self, Text name, Text algorithm, const py::object& x, const py::object& out, Text op,
         int root, int segments, const std::optional<std::string>& codec, double max_abs,
         std::vector<int> nodes, double timeout) {
  std::optional<DeviceArray> in, to;
  if (!x.is_none()) in.emplace(self, x, "x");
  if (!out.is_none()) to.emplace(self, out, "out");
  Shape shape{.collective = parse<Collective>("collective", name, kCollectiveNames), .op = parse_op(op)};
  NcclCommunicator& c = *self.communicator;
  const bool given = shape.collective == Collective::scatter ? to.has_value() : in.has_value();
  if (!given) fail(ErrorKind::invalid_argument, name, " needs ", in ? "out" : "x");
  if (in && to) require_fit(name, shape.collective, *in, *to, c.world());
  shape.dtype = (in ? *in : *to).dtype();
  shape.count = message_count(shape.collective, in ? &*in : nullptr, to ? &*to : nullptr, c.world());
  shape.root = rooted(shape.collective) ? root : 0, shape.segments = segments, shape.algorithm = algorithm;
  if (codec) shape.codec = parse_codec(*codec);
  if (codec && reduces(shape.collective)) check_sums(*shape.codec, c.world());
  if (codec && shape.codec->traits().needs_maximum) shape.codec = shape.codec->agreed(max_abs, c.world());
  shape.in_place = in && to && in->data() == to->data();
  const Arrays arrays{in ? in->data() : nullptr, to ? to->data() : nullptr};
  const std::string refused = codec ? self.device->refuses(*shape.codec, shape.dtype) : "";
  if (!refused.empty()) fail(ErrorKind::unavailable, refused);
  nodes.resize(c.world());
  run_plan(self, shape, arrays, nodes, timeout);
}

// (segments, messages of each round, bytes of scratch).
py::tuple grouped(Text name, Text algorithm, size_t count, int rank, int world, int root, int segments) {
  Shape shape{.collective = parse<Collective>("collective", name, kCollectiveNames), .count = count};
  shape.root = root, shape.segments = segments, shape.algorithm = algorithm, shape.on_device = true;
  const Grouped grouped = compile_grouped(shape, std::vector<int>(world), rank);
  std::vector<size_t> messages;
  for (const Grouped::Round& round : grouped.rounds) messages.push_back(round.messages.size());
  return py::make_tuple(grouped.program.shape.segments, messages, grouped.program.scratch_bytes);
}

void idle(PyNccl& self) {
  self.device->record(self.idle_event.get(), self.stream.get());
  while (!self.device->done(self.idle_event.get())) std::this_thread::yield();
}

void bind_library(py::module_& m) {
  // pybind11 holds no pointers to const.
  py::class_<NcclLibrary, std::shared_ptr<NcclLibrary>>(m, "NcclLibrary", "NCCL, loaded at run time.")
      .def(py::init([](const std::string& path) {
             return std::const_pointer_cast<NcclLibrary>(NcclLibrary::load(path));
           }),
           "path"_a, "A file, or the soname for the dynamic linker to find.")
      .def_property_readonly("version", &NcclLibrary::version_text)
      .def_property_readonly("file", &NcclLibrary::file)
      .def("has", &NcclLibrary::has, "name"_a, "Whether it has a call, by its full name.")
      .def(
          "unique_id",
          [](const NcclLibrary& library) {
            const nccl::UniqueId id = library.unique_id();
            return py::bytes(id.internal, sizeof id.internal);
          },
          "For the ranks of one communicator, to be told to all.");
}

}  // namespace

void bind_nccl(py::module_& m) {
  using WithoutGil = py::call_guard<Released>;
  bind_library(m);
  m.def("grouped", &grouped, "collective"_a, "algorithm"_a, "count"_a, "rank"_a, "world"_a, "root"_a = 0,
        "segments"_a = 1,
        "How a call on `count` float32 elements, all chunks together, goes over NCCL: segments, the messages "
        "of each round,\nand bytes of scratch.");
  py::class_<PyNccl>(m, "NcclCommunicator", "A communicator of NCCL on a device; calls wait for their end.")
      .def(py::init([](const std::shared_ptr<NcclLibrary>& library, const std::shared_ptr<Device>& device,
                       const py::bytes& id, int rank, int world,
                       double timeout) { return make(library, device, id, rank, world, timeout); }),
           "library"_a, "device"_a, "unique_id"_a, "rank"_a, "world"_a, "timeout"_a = 60.0)
      .def_property_readonly("rank", [](const PyNccl& c) { return c.communicator->rank(); })
      .def_property_readonly("world", [](const PyNccl& c) { return c.communicator->world(); })
      .def_readonly("device", &PyNccl::device)
      .def_property_readonly("closed", [](const PyNccl& c) { return c.communicator->closed(); })
      .def_property_readonly("stream",
                             [](const PyNccl& c) { return reinterpret_cast<uintptr_t>(c.stream.get()); })
      .def("native", &native, "collective"_a, "x"_a, "out"_a, "op"_a = "sum", "root"_a = 0,
           "timeout"_a = 60.0, "One call of NCCL's own.")
      .def("run", &run, "collective"_a, "algorithm"_a, "x"_a = py::none(), "out"_a = py::none(),
           "op"_a = "sum", "root"_a = 0, "segments"_a = 1, "codec"_a = py::none(), "max_abs"_a = 1.0,
           "nodes"_a = std::vector<int>{}, "timeout"_a = 60.0,
           "A plan, round by round. `max_abs`: of all ranks' elements, for a codec that must know it. "
           "`nodes`: the node of each\nrank, numbered from 0; none: all on one.")
      .def("split", &split, "color"_a, "key"_a = 0, "timeout"_a = 60.0, WithoutGil(),
           "A communicator of those who give the same color, by key; None for a negative one.")
      .def(
          "check", [](PyNccl& c) { c.communicator->check(); }, "Raises what NCCL has found since.")
      .def("idle", &idle, WithoutGil(), "Waits until the stream has done all it holds.")
      .def(
          "abort", [](PyNccl& c, Text why) { c.communicator->abort(std::string(why)); }, "why"_a,
          WithoutGil(), "Ends what is under way; from any thread.")
      .def(
          "close", [](PyNccl& c, double timeout) { c.communicator->close(Deadline(timeout)); },
          "timeout"_a = 60.0, WithoutGil(), "After what is enqueued, by all ranks.");
}

}  // namespace gpucomm
