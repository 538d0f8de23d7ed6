#include "engine/device_messages.h"

#include "engine/arena_messages.h"
#include "engine/nccl_messages.h"
#include "engine/offered_messages.h"
#include "engine/staged_messages.h"

namespace gpucomm {

std::unique_ptr<DeviceMessages> open_device_messages(DeviceWay way, std::shared_ptr<Transport> transport,
                                                     NcclSource nccl, const Fate& fate) {
  const int rank = fate.rank(), world = fate.world();
  if (way == DeviceWay::nccl)
    return std::make_unique<NcclMessages>(std::move(transport), std::move(nccl), fate);
  if (way == DeviceWay::staged) return std::make_unique<StagedMessages>(std::move(transport), rank, world);
  if (way == DeviceWay::arenas) return std::make_unique<ArenaMessages>(std::move(transport), fate);
  Common* const common = transport->common();
  std::lock_guard lock(common->mutex);
  if (!common->messages) common->messages = std::make_shared<Offers>(world);
  auto offers = std::static_pointer_cast<Offers>(common->messages);
  return std::make_unique<OfferedMessages>(std::move(transport), std::move(offers), rank);
}

}  // namespace gpucomm
