// The last calls of every rank, as this one can read them.
#include "bindings/flight_log.h"

#include <pybind11/stl.h>

#include "engine/message_text.h"

namespace py = pybind11;

namespace gpucomm {

static void add_calls(const Transport& transport, int world, py::list& rows) {
  for (int rank = 0; rank < world; ++rank) {
    const uint64_t last = transport.arrived(rank), done = transport.completed(rank);
    for (uint64_t s = last < kRememberedCalls ? 1 : last - kRememberedCalls + 1; s <= last; ++s) {
      const CallRecord record = transport.call(rank, s);
      if (!record.in_use) continue;
      py::dict row;
      row["rank"] = rank, row["sequence"] = s;
      row["call"] = record.message ? describe_message(record) : describe(record);
      if (record.message) row["op"] = record.message > 0 ? "send" : "recv", row["peer"] = record.root;
      row["state"] = s <= done ? "done" : "under way";
      rows.append(row);
    }
  }
}

py::list flight_log(Communicator& communicator) {
  py::list rows;
  add_calls(communicator.transport(), communicator.world(), rows);
  add_calls(communicator.messages().transport(), communicator.world(), rows);
  return rows;
}

void dump_flight_log(Communicator& communicator, const char* why) {
  try {
    py::module_::import("gpucomm.flight")
        .attr("dump")(flight_log(communicator), communicator.rank(), communicator.world(),
                      communicator.identity(), why);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the flight log of gpucomm");
  }
}

}  // namespace gpucomm
