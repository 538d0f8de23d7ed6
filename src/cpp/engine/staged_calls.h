// Calls on device arrays of ranks whose devices reach nothing of each other, not even by NCCL: the device
// folds and codes as everywhere, and its messages pass through page-locked memory of the host and travel by
// the host's own transport, as those of host arrays do.
#pragma once
#include "engine/device_execution.h"
#include "engine/expectation.h"

namespace gpucomm {

class StagedCalls : public DeviceExecution {
 public:
  using DeviceExecution::DeviceExecution;
  Silent silent() override {
    return !done() && links_ && links_->late() ? Silent::own_device : Silent::nothing;
  }

 private:
  void announce() override;
  // Every message says which call it is of: nothing of another one comes to the device.
  bool all_agree() override { return true; }
  void open(DeviceShare& share) override;
  bool connected() override { return true; }
  bool send(const Instruction& in, Lane& lane, const DeviceCall& call) override;
  bool receive(const Instruction& in, Lane& lane, const DeviceCall& call) override;
  void take(const Instruction& in, const StagedLinks::Parcel& parcel, const DeviceCall& call);
  bool move_host() override { return links_->push(); }
  bool host_done() override;

  StagedLinks* links_ = nullptr;  // of the share
  Expectation expected_;
};

}  // namespace gpucomm
