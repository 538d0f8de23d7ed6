// What an asynchronous call gives back, and how calls are waited for.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "bindings/flight_log.h"
#include "engine/communicator.h"

namespace gpucomm {

class KeptArrays;

// A timeout as users give it.
Seconds checked_timeout(double seconds);
// Whether a call has ended, on a device too.
bool ended(const Pending& call);
// Where a call's arrays are on a device: the stream that it was called on, as its library tells, waits for
// it.
void stream_waits(const Pending& call);

std::string where(const Communicator& communicator);  // "(rank 0 of 2)", for error texts

// Runs `call` and adds the rank to what it says of a bad argument.
template <class Call>
auto located_at(const Communicator& communicator, Call call) {
  try {
    return call();
  } catch (const Error& error) {
    const std::string text = error.what(), rank = where(communicator);
    const bool told = !error.bad_argument() || text.find(rank) != std::string::npos;
    throw Error(error.kind, told ? text : text + rank);
  }
}

// The handle of an asynchronous call.
class PyWork {
 public:
  // `owner`: the communicator as Python's, which closes when it is dropped: not before this was waited for.
  // `driver`: the communicator or its messages. `calls`: what must end; both halves of a sendrecv.
  PyWork(pybind11::object owner, std::shared_ptr<Communicator> communicator, Drivable& driver,
         std::vector<std::shared_ptr<Pending>> calls, pybind11::object result,
         const std::shared_ptr<KeptArrays>& kept)
      : owner_(std::move(owner)),
        communicator_(std::move(communicator)),
        kept_(kept),
        driver_(driver),
        calls_(std::move(calls)),
        result_(std::move(result)) {}
  // Arrays on a device: makes the stream wait, and the host only until all ranks have come.
  pybind11::object wait(std::optional<double> timeout_s);
  // The host waits until the arrays are there, wherever they are.
  pybind11::object synchronize(std::optional<double> timeout_s);
  bool done() const;
  pybind11::object result() const;
  template <class Call>
  auto located(Call call) const {
    return located_at(*communicator_, call);
  }

 private:
  bool settled() const;  // as for the host; on a device all is enqueued
  void require_no_graph() const;
  pybind11::object outcome() const;
  void release(bool on_device) const;

  pybind11::object owner_;
  std::shared_ptr<Communicator> communicator_;
  std::weak_ptr<KeptArrays> kept_;  // not longer than the communicator: what is kept may have this
  Drivable& driver_;
  std::vector<std::shared_ptr<Pending>> calls_;
  pybind11::object result_;
};

}  // namespace gpucomm
