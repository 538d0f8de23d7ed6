// Arrays in host memory of asynchronous calls under way in this process, on any communicator. Who writes one
// meanwhile, or reads what is being written, would find some of both states. What is on a device its streams
// order. Guarded by the GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "engine/drivable.h"

namespace gpucomm {

// Fails where what a call reads or writes (None: nothing) overlaps what one under way writes, or what it
// writes overlaps what one under way reads.
void check_apart(pybind11::handle read, pybind11::handle written);
// `name`: of the call, for error texts.
void now_in_flight(std::shared_ptr<Pending> call, const char* name, pybind11::handle read,
                   pybind11::handle written);

}  // namespace gpucomm
