// What an asynchronous call gives back.
#include "bindings/work.h"

#include <algorithm>

#include "bindings/lent.h"

namespace py = pybind11;

namespace gpucomm {

bool ended(const Pending& call) {
  if (!call.done.load(std::memory_order_acquire)) return false;
  return call.error || !call.finished || call.capture || call.finished->device()->done(call.finished->get());
}

// Of a time for all parts of a call together.
static std::optional<Seconds> left(std::optional<Seconds> all, Clock::time_point begin) {
  if (!all) return all;
  return std::max(Seconds(1e-3), Seconds(*all - (Clock::now() - begin)));
}

py::object PyWork::wait(std::optional<double> timeout_s) {
  std::optional<Seconds> timeout;
  if (timeout_s) timeout = checked_timeout(*timeout_s);
  if (!settled()) {
    check_not_forked();
    const auto begin = Clock::now();
    blocking(*communicator_, [&] {
      for (const auto& call : calls_)
        driver_.wait(*call, &call == &calls_.front() ? timeout : left(timeout, begin));
    });
  }
  for (const auto& call : calls_) stream_waits(*call);
  release(false);
  owner_ = py::object();
  return outcome();
}

// The arrays of calls that have ended are the caller's alone. On a device that is known only where the host
// has waited for it.
void PyWork::release(bool on_device) const {
  const auto kept = kept_.lock();
  for (const auto& call : calls_)
    if (kept && (on_device || !call->finished)) kept->release(*call);
}

void PyWork::require_no_graph() const {
  for (const auto& call : calls_)
    if (call->capture)
      fail(ErrorKind::invalid_argument,
           "the call was captured into a graph, whose launches tell when it has run: in the capture, wait() "
           "makes the stream wait");
}

bool PyWork::done() const {
  require_no_graph();
  for (const auto& call : calls_)
    if (!ended(*call)) return false;
  return true;
}

bool PyWork::settled() const {
  for (const auto& call : calls_)
    if (!call->done.load(std::memory_order_acquire)) return false;
  return true;
}

py::object PyWork::result() const {
  if (!settled()) fail(ErrorKind::invalid_argument, "the call is not done yet: wait() first");
  return outcome();
}

py::object PyWork::outcome() const {
  for (const auto& call : calls_)
    if (call->error) throw *call->error;
  return result_;
}

}  // namespace gpucomm
