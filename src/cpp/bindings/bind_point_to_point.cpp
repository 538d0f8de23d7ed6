#include <pybind11/stl.h>

#include "bindings/bind_communicator.h"
#include "bindings/devices.h"
#include "bindings/in_flight.h"
#include "bindings/interpreter.h"
#include "bindings/texts.h"
#include "bindings/whole.h"
#include "engine/progress.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

constexpr const char* kSend = R"(Sends x to one rank, which receives it by recv.

Messages from one rank to another are matched in the order of issue. They are apart from the collectives:
neither waits for the other. A short message has left when send returns, whether or not it is received yet;
between nodes up to three of them are ahead of the receiver.

Args:
    x: an array of any shape and dtype that speaks DLPack, C-contiguous, in host memory or in a device's; the
        receiver's must be of the same kind. From a device's memory send may wait until the receiver has
        come; then the work is enqueued.
    to: another rank.
    timeout: seconds until the message, and with it the communicator, fails on every rank; None: the
        communicator's.
    async_op: return a Work at once; x must be left alone until it is done.
    stream: of arrays on a device, as in all_reduce: the message comes after what the stream holds, and the
        stream waits until x has been read.

Returns:
    None; a Work if async_op.

Raises:
    InvalidArgumentError, UnsupportedTypeError: a bad argument; nothing was sent.
    UnavailableError: x is on a device, the ranks share no memory, and there is no NCCL.
    MismatchError: the receiver expects another dtype or count. A sender whose message had left already
        learns it from its next call.
    CollectiveTimeoutError, PeerLostError: the communicator is closed afterwards.
    ClosedError: it was closed before.)";

constexpr const char* kRecv = R"(Receives the next message from one rank into x.

Args:
    x: an array of the dtype and count that the sender sends; it is written.
    source: another rank.
    timeout, async_op, stream: as in send.

Returns:
    x; a Work if async_op.

Raises:
    As send.)";

constexpr const char* kSendRecv =
    R"(Sends x to one rank and receives out from one, the same or another, both at once.

Args:
    x: as in send.
    to: a rank; this one only where source is too: then x is copied to out.
    out: as recv's x; apart from x.
    source: the rank to receive from.
    timeout, async_op, stream: as in send.

Returns:
    out; a Work if async_op.

Raises:
    As send.)";

// What the stream holds now, as a call that has ended once that has.
std::shared_ptr<Pending> enqueued(const std::shared_ptr<Device>& device, Stream stream) {
  auto call = std::make_shared<Pending>();
  call->stream = stream, call->capture = device->capture_of(stream);
  call->finished = std::make_shared<OwnEvent>(make_event(device));
  device->record(call->finished->get(), stream);
  call->done.store(true, std::memory_order_release);
  return call;
}

}  // namespace

// A whole number; one beyond an int is as wrong as any that no rank has.
int PyCommunicator::peer_of(const char* what, py::handle rank) const {
  const auto number = whole(rank);
  if (!number || *number < 0 || *number >= core_->world())
    fail(ErrorKind::invalid_argument, what, " must be a rank in [0, ", core_->world(), "), got ", shown(rank),
         where());
  return static_cast<int>(*number);
}

void PyCommunicator::check_peer(const char* what, int peer) const {
  check_not_forked();
  if (peer == core_->rank())
    fail(ErrorKind::invalid_argument, what, " must be another rank, got ", peer,
         ": only sendrecv, with to and source this rank, copies");
}

void PyCommunicator::refuse_message(bool sending, int peer, const Error& error, int source) {
  if (!error.bad_argument() || forked() || peer < 0 || peer >= core_->world() || peer == core_->rank())
    return;
  const Released released;
  core_->messages().refuse(sending, peer, error.what(), source);
}

std::shared_ptr<Pending> PyCommunicator::start(bool sending, const Array& array, int peer,
                                               const Options& options) {
  const Seconds limit = timeout(options.timeout_s);
  Residence residence;
  if (!array.on_host()) {
    residence = {device_of(array, sending ? "x" : "out"), stream_of(options, array), message_way()};
    residence.nccl = core_->nccl();
    check_on_device({}, *residence.device);
    refuse_capture(residence.device->capture_of(residence.stream), "messages cannot be, only collectives");
  }
  const Released released;
  if (options.async_op) Progress::instance().prepare();  // what has started cannot be taken back
  return core_->messages().start(sending, peer, array.dtype(), array.count(), array.data(), limit, residence);
}

py::object PyCommunicator::finish(std::vector<std::shared_ptr<Pending>> calls, const Lent& lent,
                                  const Options& options) {
  if (!options.async_op) return wait_for(calls), lent.result;
  for (const auto& call : calls) {
    now_in_flight(call, "message", lent.read, lent.written);
    kept_->add(call, keep(lent));
  }
  core_->messages().hand_over();
  return py::cast(PyWork(py::cast(this), core_, core_->messages(), std::move(calls), lent.result, kept_));
}

// The streams too, also after the error of one half: the other may be on its way.
void PyCommunicator::wait_for(const std::vector<std::shared_ptr<Pending>>& calls) {
  const auto wait_by_stream = [&] {
    for (const auto& call : calls) stream_waits(*call);
  };
  try {
    blocking(*core_, [&] {
      for (const auto& call : calls) core_->messages().wait(*call, {});
    });
  } catch (const Error&) {
    wait_by_stream();
    throw;
  }
  wait_by_stream();
}

py::object PyCommunicator::send(py::object x, int to, const Options& options) {
  const Array in(x, "x", true);
  check_peer("to", to);
  check_apart(&in, nullptr);
  kept_->release_done();
  const Lent lent{x, py::none(), &in};
  return finish({start(true, in, to, options)}, lent, options);
}

py::object PyCommunicator::recv(py::object x, int source, const Options& options) {
  const Array to(x, "x", true);
  check_peer("source", source);
  check_writable(to, "x", ": recv writes it");
  check_apart(nullptr, &to);
  kept_->release_done();
  const Lent lent{x, x, nullptr, &to};
  return finish({start(false, to, source, options)}, lent, options);
}

py::object PyCommunicator::sendrecv(py::object x, int to, py::object out, int source,
                                    const Options& options) {
  const Array in(x, "x", true), target(out, "out", true);
  check_writable(target, "out");
  check_apart(&in, &target);
  if (in.overlaps(target)) fail(ErrorKind::invalid_argument, "x and out must be apart, they overlap");
  kept_->release_done();
  if (to == source && to == core_->rank() && !forked()) {
    if (in.dtype() != target.dtype() || in.count() != target.count())
      fail(ErrorKind::invalid_argument, "out must hold ", in.count(), " elements of ", name_of(in.dtype()),
           ", got ", target.count(), " of ", name_of(target.dtype()));
    if (!in.same_memory(target))
      fail(ErrorKind::invalid_argument, "x and out must be on one device where to and source are this rank");
    core_->fate().check_open();
    timeout(options.timeout_s);  // a bad one is refused, wherever x goes
    copy(in, target, options);
    std::vector<std::shared_ptr<Pending>> copying;
    if (!in.on_host() && options.async_op)
      copying.push_back(enqueued(device_of(in, "x"), stream_of(options, in)));
    return finish(std::move(copying), {x, out, &in, &target}, options);
  }
  check_peer("to", to);
  check_peer("source", source);
  const Lent lent{x, out, &in, &target};
  auto receiving = start(false, target, source, options);
  std::shared_ptr<Pending> sending;
  try {
    sending = start(true, in, to, options);
  } catch (const std::exception& error) {  // closed meanwhile, say: nobody may write to out any more
    core_->messages().end(core_->fate().error_of(error));
    if (receiving->error) throw *receiving->error;  // what has closed it
    throw;
  }
  return finish({sending, receiving}, lent, options);
}

void bind_point_to_point(py::class_<PyCommunicator>& type) {
  type.def(
          "send",
          [](PyCommunicator& c, Object x, const Whole& rank, const Timeout& timeout, bool async_op,
             Handle stream) {
            const int to = c.peer_of("to", rank.given);
            return c.or_tell(true, to, [&] { return c.send(x, to, {"", {}, timeout, async_op, stream}); });
          },
          "x"_a, "to"_a, py::kw_only(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), kSend)
      .def(
          "recv",
          [](PyCommunicator& c, Object x, const Whole& rank, const Timeout& timeout, bool async_op,
             Handle stream) {
            const int source = c.peer_of("source", rank.given);
            return c.or_tell(false, source,
                             [&] { return c.recv(x, source, {"", {}, timeout, async_op, stream}); });
          },
          "x"_a, "source"_a, py::kw_only(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), kRecv)
      .def(
          "sendrecv",
          [](PyCommunicator& c, Object x, const Whole& target, Object out, const Whole& origin,
             const Timeout& timeout, bool async_op, Handle stream) {
            const int to = c.peer_of("to", target.given), source = c.peer_of("source", origin.given);
            // Whoever waits for what this rank sends makes the others end too.
            const auto both = [&] {
              return c.sendrecv(x, to, out, source, {"", {}, timeout, async_op, stream});
            };
            return c.or_tell(true, to, both, source);
          },
          "x"_a, "to"_a, "out"_a, "source"_a, py::kw_only(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), kSendRecv);
}

}  // namespace gpucomm
