// Calls on device arrays of ranks that are processes: this rank's program as a state machine that never
// blocks. A step is done when it is enqueued, each lane on a stream of its own; messages pass through the
// ranks' arenas, chunk by chunk.
#pragma once
#include <memory>
#include <vector>

#include "engine/device_calls.h"
#include "engine/device_share.h"
#include "engine/device_steps.h"

namespace gpucomm {

class DeviceExecution : public DeviceCalls {
 public:
  DeviceExecution(std::shared_ptr<Transport> transport, int rank, int world);
  ~DeviceExecution() override;

  void begin(const StreamCall& call) override;
  bool advance() override;
  bool done() const override { return phase_ == Phase::done; }
  void leave() override;
  void settle() override;

 private:
  enum class Phase { coming, meeting, running, done };
  struct Lane {
    size_t next = 0, moved = 0;  // the step, and the bytes of its message that are enqueued
    bool begun = false;          // its stream waits for the other lanes' steps that come before
  };
  void tell_salts();
  bool all_came() const;
  void check_salts() const;
  void prepare();
  void start_lanes();
  void end();
  bool advance(int index);
  bool ready(const Instruction& in) const;
  void wait_for_lanes(const Instruction& in, int index);
  bool run(const Instruction& in, Lane& lane, Stream stream);
  bool send(const Instruction& in, Lane& lane, const DeviceCall& call);
  bool receive(const Instruction& in, Lane& lane, const DeviceCall& call);
  void take(const Instruction& in, size_t moved, size_t bytes, const DeviceCall& call);
  const Program& program() const { return *call_.program; }

  std::shared_ptr<Transport> transport_;
  DeviceWords& words_;
  int rank_, world_;
  std::unique_ptr<DeviceShare> share_;  // from the first call on
  StreamCall call_;
  Phase phase_ = Phase::done;
  bool left_ = false;
  uint64_t turn_ = 0;  // calls
  Spaces spaces_{};
  std::vector<Lane> lanes_;
  std::vector<uint8_t> done_, awaited_;  // by step; awaited: by another lane
  size_t remaining_ = 0;
};

}  // namespace gpucomm
