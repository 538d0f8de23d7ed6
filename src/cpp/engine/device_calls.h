// Who enqueues a communicator's calls on device arrays: one call after another, each in its turn among all
// calls.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/handles.h"
#include "devices/nccl_library.h"
#include "engine/enqueued.h"
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

class DeviceCalls : public Enqueued {
 public:
  // Announces this rank's next call.
  virtual void begin(const StreamCall& call) = 0;
  // Does all that can be done now, without blocking; false if nothing could.
  virtual bool advance() = 0;
  // Whether the call begun last is enqueued.
  virtual bool done() const = 0;
  // Once it is: recorded behind all of this rank's work of that call; others may share it.
  virtual std::shared_ptr<OwnEvent> finished() const = 0;
  // As Drivable::silent.
  virtual Silent silent() { return Silent::nothing; }
  // What enqueuing has taken this rank, where one of the threads does it for all.
  double enqueuing_s() const { return enqueuing_s_; }
  // What went wrong in coding that has run; empty: nothing.
  virtual std::string coding_fault() const { return ""; }

 protected:
  double enqueuing_s_ = 0;
};

// `nccl`: where that is the way.
std::unique_ptr<DeviceCalls> open_device_calls(DeviceWay way, std::shared_ptr<Transport> transport,
                                               NcclSource nccl, const std::vector<int>& nodes, int rank);

}  // namespace gpucomm
