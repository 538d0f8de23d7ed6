#pragma once
#include "bindings/collectives.h"

namespace gpucomm {
void bind_tuning(pybind11::class_<PyCommunicator>& type);
}
