// MPI as a wire, called through addresses found at run time in whatever MPI mpi4py has loaded: nothing is
// linked, one build serves all. Only bytes move; we reduce ourselves.
#pragma once
#include <memory>
#include <string>

#include "transports/wire.h"

namespace gpucomm {

// Values that differ from MPI to MPI, as mpi4py gives them.
struct MpiFacts {
  std::string library;    // the file of mpi4py's extension, already loaded
  size_t handle_bytes;    // of MPI_Comm and its kin: 4 (MPICH) or 8 (Open MPI)
  uint64_t communicator;  // a duplicate that nobody else uses, with MPI_ERRORS_RETURN
  uint64_t byte;          // MPI_BYTE
};

// Throws unavailable where a function is not found.
std::shared_ptr<Wire> open_mpi(const MpiFacts& facts);

}  // namespace gpucomm
