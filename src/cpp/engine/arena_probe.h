// Whether the devices of ranks that are processes can open each other's memory, found out before a call
// relies on it: a handle can be had on every GPU, also where no other one may use what it is of.
#pragma once
#include <string>

#include "devices/device.h"
#include "transports/transport.h"

namespace gpucomm {

// Each returns why not; empty: it can. All ranks come through the first before any begins the second, and
// through that before any ends its device.
std::string offer_probe(Device& device, Transport& transport, int rank, int world);
std::string open_probes(Device& device, Transport& transport, int rank, int world);

}  // namespace gpucomm
