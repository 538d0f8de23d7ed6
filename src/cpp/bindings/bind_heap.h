#pragma once
#include "bindings/collectives.h"

namespace gpucomm {

void bind_heap(pybind11::module_& m, pybind11::class_<PyCommunicator>& type);

}  // namespace gpucomm
