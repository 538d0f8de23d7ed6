// emulated: slower links around a transport within one node, so that algorithms can be compared on them.
//
// Stamps, not threads: who sends takes the ports on the message's way (link_ports.h) and stamps each chunk
// with the time at which it would be there; who receives does not see it before. Data take the usual way.
#pragma once
#include <memory>
#include <optional>

#include "transports/link_ports.h"

namespace gpucomm {

// Opens the transport of that name, behind `links` if given. Throws mismatch where another rank has others.
// `ports`: those of a transport that shares its links; nullptr: its own.
std::unique_ptr<Transport> open_transport(const std::string& name, const Endpoint& endpoint,
                                          const std::optional<EmulatedLinks>& links, Clocks* ports = nullptr);

}  // namespace gpucomm
