// Calls on device arrays of ranks that are processes: this rank's program as a state machine that never
// blocks. A step is done when it is enqueued, each lane on a stream of its own (but see device_passing.cpp);
// messages pass through the ranks' arenas, chunk by chunk, unless a subclass has another way for them.
#pragma once
#include <atomic>
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
  std::shared_ptr<OwnEvent> finished() const override { return share_->finished; }
  std::string coding_fault() const override { return share_ ? share_->held.fault() : ""; }
  void leave() override;
  std::optional<Error> settle() override;
  bool watched() const override { return share_ && share_->arena && !settled_; }
  void check(bool done, std::optional<Seconds> waited) override;

 protected:
  struct Lane {
    size_t next = 0, moved = 0;  // the step, and the bytes of its message that are enqueued
    bool begun = false;          // its stream waits for the other lanes' steps that come before
    bool headed = false;         // the message's first chunk is enqueued
  };
  // The first that a call does, and whether messages may be enqueued: all ranks make this very call.
  virtual void announce();
  virtual bool all_agree();
  // What this rank's messages pass through, made by its first call; whether all ranks have it.
  virtual void open(DeviceShare& share);
  virtual bool connected();
  // One attempt to enqueue the rest of a message; true: all of it is.
  virtual bool send(const Instruction& in, Lane& lane, const DeviceCall& call);
  virtual bool receive(const Instruction& in, Lane& lane, const DeviceCall& call);
  // Moves what the host itself does; once all is enqueued: whether that is done too.
  virtual bool move_host() { return false; }
  virtual bool host_done() { return true; }
  const Program& program() const { return *call_.program; }
  DeviceShare& share() { return *share_; }

  std::shared_ptr<Transport> transport_;
  int rank_, world_;
  StreamCall call_;

 private:
  enum class Phase { coming, meeting, running, passing, done };
  void tell_salts();
  bool all_came() const;
  void check_salts() const;
  void prepare();
  void start_lanes();
  void end();
  bool advance(int index);
  const Instruction& at(int step) const { return program().instructions[step]; }
  int head(int lane) const;
  bool ready(const Instruction& in, int except = -1) const;
  void wait_for_lanes(const Instruction& in, int index);
  bool run(int step, Lane& lane, Stream stream);
  void finish(int step);
  bool can_leave(int send, int bringing) const;
  void run_local(int step, DeviceCall call);
  void forward(const Instruction& arrived, size_t bytes);
  bool pass(const Instruction& in, DeviceCall call);
  void take(const Instruction& in, size_t moved, size_t bytes, const DeviceCall& call);

  DeviceWords* words_;                  // of arenas
  std::unique_ptr<DeviceShare> share_;  // from the first call on
  EnqueuedWatch watch_;
  Phase phase_ = Phase::done;
  bool left_ = false;
  std::atomic<bool> settled_{false};
  uint64_t turn_ = 0;  // calls
  Spaces spaces_{};
  std::vector<Lane> lanes_;
  std::vector<uint8_t> done_, awaited_;  // by step; awaited: by another lane
  size_t remaining_ = 0;
};

}  // namespace gpucomm
