// Making the memory that the ranks of a node share.
#pragma once
#include <memory>

#include "transports/transport.h"

namespace gpucomm {

std::shared_ptr<Region> make_local_region(int world);
// A memfd, formatted and sealed against shrinking; the caller closes it.
int make_shm_fd(int world);

}  // namespace gpucomm
