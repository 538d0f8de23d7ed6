// Wires between nodes.
#include <pybind11/stl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "bindings/array.h"
#include "bindings/bind.h"
#include "bindings/interpreter.h"
#include "transports/mpi.h"
#include "transports/served.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

// Python threads serve it: they wait here without the GIL.
static void bind_served(py::module_& m) {
  using WithoutGil = py::call_guard<Released>;
  using Event = ServedWire::Event;
  using Frame = ServedWire::Frame;
  py::class_<ServedWire::Line>(m, "Line", "The messages of one stream from or to one peer.")
      .def_readonly("peer", &ServedWire::Line::peer)
      .def_readonly("stream", &ServedWire::Line::stream);
  py::class_<Event>(m, "WireEvent", "What there is to do for a served wire.")
      .def_property_readonly("kind",
                             [](const Event& e) {
                               constexpr const char* names[] = {"line", "receive", "come", "drop"};
                               return names[static_cast<int>(e.kind)];
                             })
      .def_readonly("line", &Event::line)
      .def_readonly("request", &Event::request)
      .def_readonly("frame_bytes", &Event::frame_bytes);
  py::class_<Frame>(m, "Frame", "A message to send.")
      .def_readonly("request", &Frame::request)
      .def_readonly("matched", &Frame::matched)
      .def_readonly("last", &Frame::last)
      .def_property_readonly("data", [](Frame& frame) {
        return py::memoryview::from_memory(frame.bytes.data(), frame.bytes.size());
      });
  py::class_<ServedWire, Wire, std::shared_ptr<ServedWire>>(
      m, "ServedWire", "A wire for a library that can wait for a message but not ask after it.")
      .def(py::init())
      .def("next_event", &ServedWire::next_event, WithoutGil(),
           "Waits for something to do; None once the wire is closed.")
      .def("next_send", &ServedWire::next_send, "line"_a, WithoutGil(),
           "Waits for a message to send; None once the wire is closed.")
      .def(
          "prepare",
          [](ServedWire& wire, const py::object& frame) { wire.prepare(Array(frame, "frame").data()); },
          "frame"_a, "Makes an array ready to receive into.")
      .def(
          "started",
          [](ServedWire& wire, Wire::Request request, const py::object& frame) {
            wire.started(request, Array(frame, "frame").data());
          },
          "request"_a, "frame"_a, "A receive into the array is under way; it must stay until it has come.")
      .def("finish_receive", &ServedWire::finish_receive, "request"_a, "It has come for certain.")
      .def("finish_send", &ServedWire::finish_send, "request"_a, "It has left.")
      .def("fail", &ServedWire::fail_line, "line"_a, "why"_a, "The line carries no more messages.")
      .def("close", &ServedWire::close, "Ends the threads that serve it.");
}

// What libraries do without a deadline, and with Python's lock, ends the process where it takes too long.
class Watchdog {
 public:
  Watchdog(double seconds, std::string text) : seconds_(seconds), text_(std::move(text)) {}

  void begin() {
    std::thread([state = state_, limit = std::chrono::duration<double>(seconds_), text = text_ + "\n"] {
      std::unique_lock lock(state->mutex);
      if (state->ended.wait_for(lock, limit, [&] { return state->is_over; })) return;
      static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
      _exit(1);
    }).detach();
  }
  void end() {
    const std::lock_guard lock(state_->mutex);
    state_->is_over = true;
    state_->ended.notify_all();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable ended;
    bool is_over = false;
  };
  double seconds_;
  std::string text_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// From when Python has ended on, as mpi4py ends MPI then.
static void end_within(double seconds, std::string text) {
  static Watchdog* watchdog;
  watchdog = new Watchdog(seconds, std::move(text));
  Py_AtExit([] { watchdog->begin(); });
}

void bind_wires(py::module_& m) {
  py::class_<Wire, std::shared_ptr<Wire>>(m, "Wire",
                                          "What carries bytes between processes that share no memory.");
  bind_served(m);
  m.def(
      "mpi_wire",
      [](const std::string& library, size_t handle_bytes, uint64_t communicator, uint64_t byte) {
        return open_mpi({library, handle_bytes, communicator, byte});
      },
      "library"_a, py::kw_only(), "handle_bytes"_a, "communicator"_a, "byte"_a,
      "MPI as mpi4py has loaded it: the file of its extension, the size of a handle, a communicator of our "
      "own,\nand MPI_BYTE.");
  m.def("end_within", &end_within, "seconds"_a, "text"_a,
        "Ends the process with exit code 1, and this text, so long after Python has ended, if it is still "
        "there.");
  py::class_<Watchdog>(
      m, "Watchdog",
      "Ends the process with exit code 1, and this text, where its block takes longer: of what "
      "has no\ndeadline and holds the GIL.")
      .def(py::init<double, std::string>(), "seconds"_a, "text"_a)
      .def("__enter__", &Watchdog::begin)
      .def(
          "__exit__",
          [](Watchdog& watchdog, const py::object&, const py::object&, const py::object&) { watchdog.end(); },
          "kind"_a, "error"_a, "traceback"_a);
}

}  // namespace gpucomm
