// Who enqueues a communicator's calls on device arrays: one call after another, each in its turn among all
// calls.
#pragma once
#include <memory>
#include <string>

#include "devices/handles.h"
#include "engine/program.h"

namespace gpucomm {

// A rank's part of a call.
struct StreamCall {
  std::shared_ptr<const Program> program;
  Arrays arrays;
  CallRecord record;
  std::shared_ptr<OwnEvent> finished;  // recorded behind all of this rank's work
};

class DeviceCalls {
 public:
  virtual ~DeviceCalls() = default;
  // Announces this rank's next call.
  virtual void begin(const StreamCall& call) = 0;
  // Does all that can be done now, without blocking; false if nothing could.
  virtual bool advance() = 0;
  // Whether the call begun last is enqueued.
  virtual bool done() const = 0;
  // This rank ends its communicator: nothing more is enqueued. May wait for what is, but not for long.
  virtual void leave() = 0;
  // Waits, not for long, until no other rank reads what this one has sent: its process may end then.
  virtual void settle() {}
};

// For these ranks: threads of one process, or processes that share memory. Throws unavailable for others.
std::unique_ptr<DeviceCalls> open_device_calls(std::shared_ptr<Transport> transport, const std::string& name,
                                               int rank, int world);

}  // namespace gpucomm
