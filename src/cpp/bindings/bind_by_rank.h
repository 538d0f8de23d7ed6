// Signatures and docstrings of the collectives whose message has a part for every rank.
#pragma once
#include "bindings/collectives.h"

namespace gpucomm {

void bind_by_rank(pybind11::class_<PyCommunicator>& type);

}  // namespace gpucomm
