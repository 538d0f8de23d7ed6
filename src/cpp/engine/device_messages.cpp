#include "engine/device_messages.h"

#include "base/env.h"
#include "engine/arena_messages.h"
#include "engine/offered_messages.h"
#include "engine/staged_messages.h"

namespace gpucomm {

std::unique_ptr<DeviceMessages> open_device_messages(std::shared_ptr<Transport> transport, int rank,
                                                     int world) {
  if (env().device_transport == "staged" && !transport->emulates())
    return std::make_unique<StagedMessages>(std::move(transport), rank, world);
  if (Common* common = transport->common()) {
    std::lock_guard lock(common->mutex);
    if (!common->messages) common->messages = std::make_shared<Offers>(world);
    auto offers = std::static_pointer_cast<Offers>(common->messages);
    return std::make_unique<OfferedMessages>(std::move(transport), std::move(offers), rank);
  }
  if (!transport->device_words())
    fail(ErrorKind::unavailable, "messages of device arrays need ranks that share memory, as threads of one ",
         "process or as processes of one machine, and no emulated links; GPUCOMM_DEVICE_TRANSPORT=staged "
         "takes them through host memory (rank ",
         rank, " of ", world, ")");
  return std::make_unique<ArenaMessages>(std::move(transport), rank, world);
}

}  // namespace gpucomm
