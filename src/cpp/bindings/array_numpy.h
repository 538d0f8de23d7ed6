// NumPy's arrays, read where they stand: their DLPack takes longer than a short message does.
#pragma once
#include <pybind11/pybind11.h>

#include "base/dlpack.h"

namespace gpucomm {

// False: not usual, as an array that is not C-contiguous, and left to DLPack.
bool read_numpy(pybind11::handle object, dlpack::Tensor& tensor, bool& read_only);

}  // namespace gpucomm
