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
  OwnMemory scratch;
  std::vector<OwnMemory> outgrown;  // what is under way may still use it

  void expect_faults() {
    if (!faults) faults = device->make_faults();
  }
  std::string fault(const std::string& where) const {
    const std::string text = faults ? faults->text() : "";
    return text.empty() ? "" : concat(where, ": ", text);
  }
  std::string fault() const { return fault(device ? device->name() : ""); }
  // Has that many streams at least.
  void grow_streams(size_t count) {
    while (streams.size() < count) {
      events.push_back(make_event(device));
      streams.push_back(make_stream(device));
    }
  }
  // Twice as much each time: what is outgrown is together less than what there is now.
  std::byte* grow_scratch(size_t bytes) {
    if (bytes > scratch.bytes()) {
      OwnMemory grown(device, std::max(bytes, 2 * scratch.bytes()));
      if (scratch.bytes()) outgrown.push_back(std::move(scratch));
      scratch = std::move(grown);
    }
    return scratch.get();
  }
};

}  // namespace gpucomm
