// What a device is given to do side by side must lie apart.
#pragma once
#include <vector>

#include "devices/device.h"

namespace gpucomm {

// Throws where one of them writes what another one reads or writes. Of copies, folds and codings.
template <class One>
void check_apart(const std::vector<One>& all);

}  // namespace gpucomm
