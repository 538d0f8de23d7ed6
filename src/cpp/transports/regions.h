// Making the memory that the ranks of a node share.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "transports/transport.h"

namespace gpucomm {

// `heap_bytes`: the heap of each rank, at most; it gets what the process may map. nullopt: the default.
std::shared_ptr<Region> make_local_region(int world, std::optional<size_t> heap_bytes = {});
// A memfd, formatted and sealed against shrinking; the caller closes it.
int make_shm_fd(int world, std::optional<size_t> heap_bytes = {});

// The sizes to try for each rank's heap, the largest first: half as much each time, at last none.
std::vector<size_t> heap_sizes(int world, std::optional<size_t> wish);

}  // namespace gpucomm
