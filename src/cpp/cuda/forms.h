// The forms and operations of reduce/reduce.h for devices: of host and device.
#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/both.h"
#include "base/half.h"

namespace gpucomm::cuda {

#include "reduce/forms.inc"

}  // namespace gpucomm::cuda
