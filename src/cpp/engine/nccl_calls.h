// Calls on device arrays of ranks that share no memory, or that ask for it: over NCCL, as a state machine
// that never blocks. The host's channel finds out first that all ranks make the same call.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device_calls.h"
#include "engine/device_share.h"
#include "engine/enqueued_watch.h"
#include "engine/nccl_call.h"
#include "engine/remembered.h"
#include "engine/side_call.h"

namespace gpucomm {

class NcclCalls : public DeviceCalls {
 public:
  NcclCalls(std::shared_ptr<Transport> transport, NcclSource source, std::vector<int> nodes, int rank);
  ~NcclCalls() override;

  void begin(const StreamCall& call) override;
  bool advance() override;
  bool done() const override { return phase_ == Phase::done; }
  std::shared_ptr<OwnEvent> finished() const override { return share_->finished; }
  Silent silent() override { return phase_ == Phase::running ? Silent::others : Silent::nothing; }
  std::string coding_fault() const override { return share_ ? share_->held.fault() : ""; }
  // Ends a call that is under way; else settle() does it.
  void leave() override;
  void fault() override;
  std::optional<Error> settle() override;
  bool watched() const override { return communicator_ && !closed_; }
  void check(bool done, std::optional<Seconds> waited) override;

 private:
  // The ranks come to the same call, their blocks fit, they get the unique id, and rounds go out.
  enum class Phase { meeting, fitting, naming, running, done };
  bool step();
  void open();
  void start_fitting();
  void check_fitting() const;
  void prepare();
  void start_running();
  bool enqueue_next();
  void end();
  const Grouped& grouped();
  const Program& program() const { return *call_.program; }
  // What is enqueued: of a plan with the scratch in which messages land.
  const Program& running() { return native() ? program() : grouped().program; }
  bool native() const;
  std::string where() const { return concat(" (rank ", rank_, " of ", nodes_.size(), ")"); }

  std::shared_ptr<Transport> transport_;
  NcclSource source_;
  std::vector<int> nodes_;
  int rank_;
  EnqueuedWatch watch_;
  StreamCall call_;
  Phase phase_ = Phase::done;
  std::atomic<bool> ended_{false}, closed_{false};  // nothing of NCCL is left; all of it was done before
  SideCall meeting_;
  std::optional<SideCall> fitting_, naming_;
  std::vector<int64_t> told_, heard_;  // elements of blocks of an all_to_all, by peer
  nccl::UniqueId id_{};
  std::unique_ptr<NcclCommunicator> communicator_;  // from the first call on that needs it
  std::unique_ptr<DeviceShare> share_;              // from the first call on; all runs on its hub
  Remembered<std::shared_ptr<const Program>, Grouped> grouped_;
  std::optional<NcclCall> running_;
  bool given_ = false;  // the native call is NCCL's
};

}  // namespace gpucomm
