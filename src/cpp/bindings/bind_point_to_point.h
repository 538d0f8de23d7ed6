// Signatures and docstrings of the messages between two ranks.
#pragma once
#include "bindings/collectives.h"

namespace gpucomm {

void bind_point_to_point(pybind11::class_<PyCommunicator>& type);

}  // namespace gpucomm
