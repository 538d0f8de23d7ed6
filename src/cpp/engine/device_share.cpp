#include "engine/device_share.h"

#include <chrono>
#include <mutex>

#include "base/error.h"
#include "base/soon.h"

namespace gpucomm {
namespace {

// Who reads may come late to a message, and what it has enqueued may come late behind other work.
constexpr std::chrono::milliseconds kUntaken{2000}, kUnread = kOwnWork;

// Looked at each time that something is put there. Never destroyed: what is left ends with the process.
class Attic {
 public:
  void keep(std::unique_ptr<DeviceShare> share) {
    std::lock_guard lock(mutex_);
    items_.push_back({std::move(share)});
    sweep();
  }
  void look() {
    std::lock_guard lock(mutex_);
    sweep();
  }

 private:
  struct Item {
    std::unique_ptr<DeviceShare> share;
    bool closed = false;
  };
  void sweep() {
    std::erase_if(items_, [](Item& item) { return ended(item); });
  }
  static bool ended(Item& item) noexcept try {
    DeviceShare& share = *item.share;
    if (!share.ended()) return false;
    // Others give their memory back once all have closed it: that must not be put off.
    if (share.arena && !item.closed && !share.held.device->releases_at_once()) return false;
    if (share.arena && !std::exchange(item.closed, true)) share.arena->close();
    return !share.arena || share.arena->closed_by_all();
  } catch (const Error&) {  // a device that has failed may still use it
    return false;
  }

  std::mutex mutex_;  // guards items_
  std::vector<Item> items_;
};

}  // namespace

DeviceShare::DeviceShare(std::shared_ptr<Device> device) {
  held.device = device;
  hub = make_stream(device), came = make_event(device);
  hub_event = std::make_shared<OwnEvent>(make_event(device));
}

void DeviceShare::finish(const Arrays& arrays) {
  finished.reset();
  finished = events.take(held.device);
  held.device->record(finished->get(), hub.get());
  if (arrays.stream_waits) held.device->wait(arrays.stream, finished->get());
}

void DeviceShare::mark_end() {
  held.join(*held.device, hub.get());
  held.device->record(hub_event->get(), hub.get());
}

void DeviceShare::put_releases_off() const {
  held.device->put_releases_off([event = std::weak_ptr(hub_event)] {
    try {
      const auto last = event.lock();
      return !last || last->device()->done(last->get());
    } catch (const Error&) {  // a device that has failed waits for nothing
      return true;
    }
  });
}

bool DeviceShare::ends(std::chrono::milliseconds patience) noexcept try {
  mark_end();
  put_releases_off();  // first: who gives memory back meanwhile would wait, too
  return soon(patience, [this] { return ended(); });
} catch (const Error&) {  // the device has failed
  return false;
}

bool DeviceShare::ends(EnqueuedWatch watch, std::optional<Error>& undone) noexcept try {
  mark_end();
  put_releases_off();
  if (!soon(kOwnWork, [&] { return watch.check_everybody(), ended(); }))
    watch.time_out(held.device->name(), kOwnWork);
  return true;
} catch (const Error& error) {
  if (error.kind != ErrorKind::unavailable) undone = error;
  return false;
}

// A process that ends takes along what it has enqueued, which others' devices may wait for, for ever.
void DeviceShare::wait_for_readers(EnqueuedWatch watch) const noexcept try {
  if (!arena) return;
  soon(kUntaken, [&] { return watch.check_everybody(), arena->all_taken(); });
  soon(kUnread, [&] { return watch.check_everybody(), ended() && arena->all_read(); });
} catch (const Error&) {  // a rank is gone, or the device has failed: what it has is gone
}

void outlive(std::unique_ptr<DeviceShare> share) {
  static auto* const attic = new Attic;
  attic->look();  // before releases are put off, those of what has ended among them
  try {
    share->mark_end();
    if (!share->ended()) share->put_releases_off();
    attic->keep(std::move(share));
  } catch (const Error&) {
    static_cast<void>(share.release());  // a device that has failed may still use it
  }
}

}  // namespace gpucomm
