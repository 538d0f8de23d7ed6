// Wires between nodes.
#include "bindings/bind.h"
#include "transports/mpi.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {

void bind_wires(py::module_& m) {
  py::class_<Wire, std::shared_ptr<Wire>>(m, "Wire",
                                          "What carries bytes between processes that share no memory.");
  m.def(
      "mpi_wire",
      [](const std::string& library, size_t handle_bytes, uint64_t communicator, uint64_t byte) {
        return open_mpi({library, handle_bytes, communicator, byte});
      },
      "library"_a, py::kw_only(), "handle_bytes"_a, "communicator"_a, "byte"_a,
      "MPI as mpi4py has loaded it: the file of its extension, the size of a handle, a communicator of our "
      "own,\nand MPI_BYTE.");
}

}  // namespace gpucomm
