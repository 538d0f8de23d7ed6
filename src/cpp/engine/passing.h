// Coded pieces that can do without a slot of scratch: where messages lie in memory of the device that both
// ends use, a piece can be encoded straight into the message that takes it away, and decoded out of the one
// that brought it.
#pragma once
#include "engine/program.h"

namespace gpucomm {

// Marks what brings such a piece in a call on a device. Who runs the program may use scratch all the same.
void mark_passing(Program& program);

}  // namespace gpucomm
