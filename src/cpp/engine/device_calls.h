// Who enqueues a communicator's calls on device arrays: one call after another, each in its turn among all
// calls.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/handles.h"
#include "devices/nccl_library.h"
#include "engine/program.h"

namespace gpucomm {

// A rank's part of a call.
struct StreamCall {
  std::shared_ptr<const Program> program;
  Arrays arrays;
  CallRecord record;
};

// What GPUCOMM_DEVICE_TRANSPORT and what the ranks share lead to. Where the ranks may choose, one that cannot
// go that way makes all of them stage.
struct DeviceWish {
  DeviceWay way;
  bool else_staged;
};
// Throws invalid_argument or unavailable.
DeviceWish device_wish(Transport& transport, const std::string& name, int rank, int world);

// NCCL, or why there is none.
struct NcclSource {
  std::shared_ptr<const NcclLibrary> library;
  std::string missing;
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
  // Once it is: recorded behind all of this rank's work of that call; others may share it.
  virtual std::shared_ptr<OwnEvent> finished() const = 0;
  // As Drivable::silent.
  virtual bool silent() { return false; }
  // What enqueuing has taken this rank, where one of the threads does it for all.
  double enqueuing_s() const { return enqueuing_s_; }
  // What went wrong in coding that has run; empty: nothing.
  virtual std::string coding_fault() const { return ""; }
  // This rank ends its communicator: nothing more is enqueued. May wait for what is, but not for long.
  virtual void leave() = 0;
  // Waits, not for long, until no other rank reads what this one has sent: its process may end then. What
  // was not done by then, and will not be.
  virtual std::optional<Error> settle() { return {}; }
  // As leave(), after a fault: what is enqueued may wait for a rank that will never come.
  virtual void fault() { leave(); }
  // Whether the end of what is enqueued depends on the other ranks, so that the host has to watch them.
  virtual bool watched() const { return false; }
  // Of a host that waits for work that is enqueued, or has waited until it was done: throws what has gone
  // wrong. `waited_s`: it has waited so long in vain.
  virtual void check(bool /*done*/, std::optional<double> /*waited_s*/) {}

 protected:
  double enqueuing_s_ = 0;
};

// `nccl`: where that is the way.
std::unique_ptr<DeviceCalls> open_device_calls(DeviceWay way, std::shared_ptr<Transport> transport,
                                               NcclSource nccl, const std::vector<int>& nodes, int rank);

}  // namespace gpucomm
