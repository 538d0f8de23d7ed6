// The last calls of every rank, and calls that write them where they fail.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdlib>

#include "bindings/interpreter.h"
#include "engine/communicator.h"

namespace gpucomm {

// The last calls of every rank, as this one can read them: rows of rank, sequence, call, state; of sends and
// receives, which count apart, op and peer too.
pybind11::list flight_log(Communicator& communicator);
// Writes them to a file; what goes wrong with that is said, and raises nothing.
void dump_flight_log(Communicator& communicator, const char* why);

// Runs what may block, without the GIL. The exception of a signal's handler (Ctrl-C) goes before the error
// that it caused; a fault writes the flight log where one is asked for.
template <class Call>
void blocking(Communicator& communicator, Call call) {
  try {
    {
      const Released released;
      call();
    }
    if (PyErr_Occurred()) throw pybind11::error_already_set();  // the call ended while the handler ran
  } catch (const Error& error) {
    if (PyErr_Occurred()) throw pybind11::error_already_set();
    const char* const folder = std::getenv("GPUCOMM_FLIGHT_DIR");
    if (error.kind != ErrorKind::closed && folder && *folder) dump_flight_log(communicator, error.what());
    throw;
  }
}

}  // namespace gpucomm
