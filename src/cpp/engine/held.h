// What a rank has on its device for the calls of a communicator.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/handles.h"

namespace gpucomm {

struct Held {
  std::shared_ptr<Device> device;
  std::unique_ptr<CodingFaults> faults;  // of what is enqueued; null: nothing was coded
  std::vector<OwnStream> streams;
  std::vector<OwnEvent> events;  // one for each stream
  struct Scratch {
    OwnMemory memory;
    uint64_t capture = 0;
  };
  Scratch scratch[2];               // of calls as they are, and of the last capture of a graph
  std::byte* at_hand = nullptr;     // the one that the call at hand uses
  std::vector<OwnMemory> outgrown;  // what is under way, or in a graph, may still use it

  void expect_faults() {
    if (!faults) faults = device->make_faults();
  }
  std::string fault(const std::string& where) const {
    const std::string text = faults ? faults->text() : "";
    return text.empty() ? "" : concat(where, ": ", text);
  }
  std::string fault() const { return fault(device ? device->name() : ""); }
  // What that stream gets from now on comes behind all that the streams hold.
  void join(Device& owner, Stream stream) {
    for (size_t i = 0; i < streams.size(); ++i) {
      device->record(events[i].get(), streams[i].get());
      owner.wait(stream, events[i].get());
    }
  }
  // Has that many streams at least.
  void grow_streams(size_t count) {
    while (streams.size() < count) {
      events.push_back(make_event(device));
      streams.push_back(make_stream(device));
    }
  }
  // Twice as much each time: what is outgrown is together less than what there is now. But each capture has
  // its own: its graph is launched at any time, behind the caller's stream, which knows of no other's calls.
  std::byte* grow_scratch(size_t bytes, uint64_t capture = 0) {
    Scratch& own = scratch[capture != 0];
    const size_t has = own.capture == capture ? own.memory.bytes() : 0;
    if (bytes > has) {
      OwnMemory grown(device, std::max(bytes, 2 * has));
      if (own.memory.bytes()) outgrown.push_back(std::move(own.memory));
      own = {std::move(grown), capture};
    }
    return at_hand = own.memory.get();
  }
};

}  // namespace gpucomm
