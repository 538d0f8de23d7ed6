// What a rank that is a process has on its device: its streams, and the arena that others read. After its
// communicator it stays as long as its own work or another rank uses it.
#pragma once
#include <chrono>
#include <memory>

#include "engine/call.h"
#include "engine/enqueued_watch.h"
#include "engine/held.h"
#include "engine/shared_arena.h"
#include "engine/staged_links.h"

namespace gpucomm {

// Behind what the caller's stream held: that of the call, else `own`, recorded now.
inline Event came_of(const Arrays& arrays, const OwnEvent& own) {
  if (arrays.came) return arrays.came->get();
  arrays.device->record(own.get(), arrays.stream);
  return own.get();
}

struct DeviceShare {
  explicit DeviceShare(std::shared_ptr<Device> device);
  // A call's end: all that the hub holds has been done once `finished` is, for which the caller's stream
  // waits.
  void finish(const Arrays& arrays);
  // hub_event is done when all is that the streams hold now.
  void mark_end();
  bool ended() const { return held.device->done(hub_event->get()); }
  // Behind mark_end(): until that holds, or this is no more, no memory of the device is given back.
  void put_releases_off() const;
  // Whether what is enqueued ends in that time: who is gone may have left it undone for ever, or the device
  // has failed.
  bool ends(std::chrono::milliseconds patience) noexcept;
  // The same of work that needs the others; if not, who is missing. Of a device that has failed all hear.
  bool ends(EnqueuedWatch watch, std::optional<Error>& undone) noexcept;
  // Behind `ends`: waits until that holds and others have read what was sent, as long as they are there.
  void wait_for_readers(EnqueuedWatch watch) const noexcept;

  Held held;
  OwnStream hub;  // between the caller's streams and those of the lanes, so that calls follow one another
  OwnEvent came;
  std::shared_ptr<OwnEvent> hub_event;
  std::shared_ptr<OwnEvent> finished;  // of the last call; others may hold it
  Events events;                       // of which that is one
  std::unique_ptr<SharedArena> arena;  // null: there are no others, or messages pass through ...
  std::unique_ptr<StagedLinks> links;  // ... the host
};

// Takes it over, and ends it, and those of earlier communicators, when nobody uses it any more.
void outlive(std::unique_ptr<DeviceShare> share);

}  // namespace gpucomm
