// The end of a StreamGroup: what is enqueued may still use what the ranks have.
#include <iterator>
#include <memory>
#include <utility>

#include "base/soon.h"
#include "engine/device_share.h"
#include "engine/stream_group.h"

namespace gpucomm {

// What the streams hold may still use any rank's memory: ending a stream waits for nothing.
StreamGroup::~StreamGroup() {
  leave(0);
  if (hub_ && !ended()) leave_behind();
}

// Once the first has left nothing changes any more: the ranks wait beside each other.
void StreamGroup::leave(int rank) {
  {
    std::lock_guard lock(mutex_);
    if (!left_) left_ = rank;
    if (hub_ && !marked_) marked_ = mark_end();
    if (!marked_) return;
  }
  soon(kAtAnEnd, [this] { return ended(); });
}

// Where a call was enqueued in part on the ranks' own stream, which may be gone when the group ends.
void StreamGroup::mark_part() try {
  if (base_ == hub_.get()) return;
  if (former_) device(0).wait(base_, former_->get());
  auto event = finished_of_.take(ranks_[0].device);
  device(0).record(event->get(), base_);
  former_ = std::move(event);
} catch (const Error&) {  // the device has failed
}

// Where a call was enqueued in part, its streams do not come together by themselves. False: what is enqueued
// is in a capture, and runs when its graph is launched; or the device has failed.
bool StreamGroup::mark_end() try {
  Device& device = *hub_.device();
  if (device.capture_of(hub_.get())) return false;
  if (former_) device.wait(hub_.get(), former_->get());
  for (auto* all : {&ranks_, &left_behind_})
    for (Held& held : *all) held.join(device, hub_.get());
  device.record(hub_event_.get(), hub_.get());
  return true;
} catch (const Error&) {
  return false;
}

bool StreamGroup::ended() const try {
  return marked_ && hub_.device()->done(hub_event_.get());
} catch (const Error&) {  // the device has failed
  return false;
}

// Each device's part waits for the streams of all: these use any rank's scratch.
void StreamGroup::leave_behind() try {
  std::vector<Held>& all = left_behind_;
  all.insert(all.end(), std::move_iterator(ranks_.begin()), std::move_iterator(ranks_.end()));
  Held& own = all.emplace_back();
  own.device = hub_.device();
  own.streams.push_back(std::move(hub_)), own.events.push_back(make_event(own.device));
  for (Held& held : all) {
    if (!held.device) continue;
    auto share = std::make_unique<DeviceShare>(held.device);
    held.device->wait(share->hub.get(), hub_event_.get());
    share->held = std::move(held);
    outlive(std::move(share));
  }
} catch (const Error&) {  // the device has failed: what it has is gone
}

}  // namespace gpucomm
