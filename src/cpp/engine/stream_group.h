// The ranks of a communicator that are threads of one process, where they call collectives on device arrays:
// the last to come enqueues the work of all of them, on streams of the group, and nobody waits for its end.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/device_calls.h"
#include "engine/device_steps.h"
#include "engine/held.h"
#include "engine/launches.h"
#include "engine/remembered.h"

namespace gpucomm {

class StreamGroup {
 public:
  explicit StreamGroup(int world) : parts_(world), ranks_(world), finished_(world) {}
  ~StreamGroup();

  // This rank's part of its next call. The last to come enqueues, or throws what is wrong: mismatch where the
  // parts do not fit. Once a rank has left nothing is enqueued: which one.
  std::optional<int> come(int rank, const StreamCall& part);
  // A rank ends its communicator: nothing is enqueued any more. Waits, not for long, until no stream of the
  // group uses an array: they may go then.
  void leave(int rank);
  // Of all ranks: what comes of it reaches the others.
  std::string coding_fault() const;
  // Recorded behind the last call that all have come to.
  const std::shared_ptr<OwnEvent>& finished(int rank) const { return finished_[rank]; }
  // Whether all have come to a call.
  bool enqueued(uint64_t sequence) const { return enqueued_.load(std::memory_order_acquire) >= sequence; }

 private:
  void check() const;
  void mark_part();
  bool mark_end();
  bool ended() const;
  void leave_behind();
  void check_captures() const;
  void prepare();
  Held held_on(const std::shared_ptr<Device>& device);
  void lend(size_t rank, bool moved) const;
  const Launches& launches_of();
  void enqueue_all(const Launches& launches);
  void begin(const Launches& launches);
  bool on_one_stream() const;
  void wait_for_ranks();
  void have_ranks_wait();
  bool on_one_device() const;
  void give_streams(const std::vector<int>& tracks);
  void enqueue(const Launch& launch);
  void add(Batch& batch, const Launch::Step& step, Stream stream) const;
  const std::byte* lies(const Launch::Source& sent) const;
  void end(const Launches& launches);
  void mark_finished();
  Stream ended(size_t rank);
  bool streams_alike(size_t rank, bool waiting = false) const;
  template <class Stage>
  void stage(Stage stage);
  Fold fold_of(const Launch::Step& step, const DeviceCall& call) const;
  DeviceCall call_of(int rank, Stream stream) const;
  Device& device(int rank) const { return *ranks_[rank].device; }
  const Instruction& at(int rank, int step) const { return parts_[rank]->program->instructions[step]; }

  mutable std::mutex mutex_;  // guards all below but the atomic; finished_ is also read behind it
  std::vector<std::optional<StreamCall>> parts_;
  std::vector<Held> ranks_;        // streams: by track, in the order of the rank's own
  std::vector<Held> left_behind_;  // on devices that ranks have moved away from: what is under way may use it
  // Of the group: between the ranks' streams and its own, so that calls follow one another.
  OwnStream hub_;
  OwnEvent hub_event_;
  Stream base_ = nullptr;             // of the call at hand: the hub, or the ranks' own stream
  std::shared_ptr<OwnEvent> former_;  // the end of the former call that was not captured, or failed half-way
  std::vector<OwnEvent> came_;        // by rank: what its stream held
  std::vector<std::shared_ptr<OwnEvent>> finished_;  // by rank; one for each device
  Events finished_of_;                               // where they come from
  std::vector<Spaces> spaces_;                       // by rank, of the call at hand
  std::vector<Stream> streams_;                      // by track
  std::vector<Event> events_;                        // the same; none where the hub is the only one
  // Whether on one device; by rank.
  using Key = std::pair<bool, std::vector<std::shared_ptr<const Program>>>;
  Remembered<Key, Launches> launches_;
  int present_ = 0;
  uint64_t capture_ = 0;     // in which the last call is
  std::optional<int> left_;  // the first that has left: no rank calls any more ...
  bool marked_ = false;      // ... and hub_event_ is behind all that is enqueued
  std::atomic<uint64_t> enqueued_{0};
};

}  // namespace gpucomm
