// The handle of an asynchronous call, and what counts bytes.
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/collectives.h"
#include "engine/label.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

static void bind_handle(py::module_& m) {
  py::class_<PyWork>(m, "Work", "The handle of an asynchronous call.")
      .def(
          "wait",
          [](PyWork& work, const Timeout& timeout) {
            return work.located([&] { return work.wait(timeout); });
          },
          "timeout"_a = py::none(),
          "Waits for the end and returns the result; raises the call's error. After `timeout` seconds the "
          "call, and\n"
          "with it the communicator, fails on every rank.")
      .def(
          "synchronize",
          [](PyWork& work, const Timeout& timeout) {
            return work.located([&] { return work.synchronize(timeout); });
          },
          "timeout"_a = py::none(),
          "As wait, but the host waits for arrays on a device too, whose stream only would.")
      .def("done", &PyWork::done, "Whether the call has ended, well or not.")
      .def_property_readonly("result", &PyWork::result,
                             "The result of a call that is done; raises its error.");
}

static void bind_meter(py::module_& m) {
  py::class_<Meter>(m, "Meter", "Counts what the calls send that this thread makes within `with`.")
      .def(py::init<>())
      .def(
          "__enter__",
          [](Meter& meter) -> Meter& {
            meter.begin();
            return meter;
          },
          py::return_value_policy::reference, "Begins to count.")
      .def(
          "__exit__", [](Meter& meter, Object, Object, Object) { meter.end(); }, "kind"_a, "error"_a,
          "where"_a, "Counts no more.")
      .def_property_readonly("bytes_sent", &Meter::bytes_sent, "By this rank, of payload.");
}

static void bind_label(py::module_& m) {
  py::class_<Label>(m, "Label",
                    "What the calls are for that this thread makes within `with`: all ranks' must be alike.")
      .def(py::init<uint64_t, uint64_t, uint64_t, uint64_t, std::optional<uint64_t>>(), "optimizer"_a,
           "round"_a, "bucket"_a, "steps"_a = 0, "trained"_a = py::none())
      .def("__enter__", &Label::begin, "Begins to say so.")
      .def(
          "__exit__", [](Label& label, Object, Object, Object) { label.end(); }, "kind"_a, "error"_a,
          "where"_a, "Says so no more.");
}

void bind_work(py::module_& m) {
  bind_handle(m);
  bind_label(m);
  bind_meter(m);
}

}  // namespace gpucomm
