// Parts of the communicator's class as Python sees it: signatures and docstrings.
#pragma once
#include "bindings/collectives.h"

namespace gpucomm {

// The collectives whose message has a part for every rank.
void bind_by_rank(pybind11::class_<PyCommunicator>& type);
void bind_whole_messages(pybind11::class_<PyCommunicator>& type);
void bind_point_to_point(pybind11::class_<PyCommunicator>& type);
void bind_tuning(pybind11::class_<PyCommunicator>& type);
void bind_internal(pybind11::class_<PyCommunicator>& type);
void bind_heap(pybind11::module_& m, pybind11::class_<PyCommunicator>& type);

}  // namespace gpucomm
