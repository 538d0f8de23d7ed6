// A communicator: runs collectives in the order of issue, one at a time, and messages between two ranks
// beside them. After a fault it is closed for good.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/aligned.h"
#include "engine/device_calls.h"
#include "engine/execution.h"
#include "engine/label.h"
#include "engine/meter.h"
#include "engine/point_to_point.h"
#include "engine/programs.h"
#include "engine/refusals.h"
#include "engine/side_call.h"

namespace gpucomm {

struct Work : Pending {
  std::shared_ptr<const Program> program;  // null: settled at the start, from what follows
  Shape shape;
  std::shared_ptr<Tuning> tuning;
  Tuning::Turn turn;
  std::vector<double> times;  // of an agreement
  Clock::time_point begun;
  Arrays arrays;
  uint64_t sequence = 0, label = 0;
  Execution execution;
  bool started = false, meets = false;  // meets: the ranks find out that all have come
  std::shared_ptr<Meter::Count> meter;  // of the thread that made the call
  uint64_t sent_before = 0;             // what the transport had sent at its start
};

class Communicator : public Drivable {
 public:
  struct Stats {
    Transport::Counters traffic;
    uint64_t calls, device_calls, encodes, decodes;  // by this rank; the latter two of pieces
    double enqueuing_s;
  };
  // `messages`: another channel of the same ranks, for point to point. `nodes`: the node of each rank.
  Communicator(std::shared_ptr<Transport> transport, std::shared_ptr<Transport> messages,
               std::string transport_name, int rank, std::vector<int> nodes, uint64_t identity,
               Seconds timeout);
  ~Communicator() override;

  // Runs a call and waits for its end; throws its error.
  void run(const Shape& shape, const Arrays& arrays, Seconds timeout);
  // Starts a call; the progress thread drives it while nobody waits.
  std::shared_ptr<Work> start(const Shape& shape, const Arrays& arrays, Seconds timeout);
  // For callers that hold a lock which others need, as Python's: starts a short call and moves it on for no
  // longer than a peer that is there takes to answer. True: done. Else it has `begun`, or has not where that
  // stays null: not short, or not now.
  bool attempt(const Shape& shape, const Arrays& arrays, Seconds timeout, std::shared_ptr<Work>& begun);
  // Waits for the end of what attempt() has begun; throws its error.
  void await(std::shared_ptr<Work> work);
  void close();
  // Before an explicit close(): throws where a call that has ended here was another one elsewhere.
  void check_ended_calls();
  // Tells the other ranks that this one does not make the next call, "all_reduce" say.
  void refuse(const std::string& call, const std::string& why);
  // Ends it on every rank, for good: all calls under way and later ones raise.
  void abort();
  // The same, for an error that comes before a call has begun and of which nobody knows what it has left half
  // done.
  void give_up(const Error& error);
  // Of who waits for these ranks beside its calls, in `call`: throws what ends that wait, a fault of this
  // communicator; after one, that a rank is gone.
  void check_waiting(const std::vector<int>& ranks, const std::string& call);
  // After a fault: waits until all live ranks have come here too, or for so long, and returns those that go
  // on, the same on every rank; this one may have come too late. `round` counts the attempts.
  std::vector<int> survivors(int round, Seconds patience);
  // Whether what the survivors of a round have made is kept: as the first of them said.
  bool keep(int round, bool proposal);
  // Whether it has been decided that it is not.
  bool abandoned_in(int round);
  bool closed() const { return fate_.closed(); }
  const Fate& fate() const { return fate_; }

  bool drive_once() override;
  void check(const Pending* waited = nullptr, std::optional<Seconds> expired = {}) override;
  Stats stats() const;
  PointToPoint& messages() { return messages_; }

  // How calls on device arrays go, once the first has settled it; what is to be settled.
  std::optional<DeviceWay> device_way() const {
    std::lock_guard lock(mutex_);
    return way_;
  }
  DeviceWish device_wish() const;
  void settle_device_way(DeviceWay way) {
    std::lock_guard lock(mutex_);
    way_ = way;
  }
  // NCCL is asked for once, by who first makes such a call.
  bool lacks_nccl() const {
    std::lock_guard lock(mutex_);
    return !nccl_.library && nccl_.missing.empty();
  }
  NcclSource nccl() const {
    std::lock_guard lock(mutex_);
    return nccl_;
  }
  void give_nccl(NcclSource source) {
    std::lock_guard lock(mutex_);
    nccl_ = std::move(source);
  }
  // Of a host that waits for enqueued work, as DeviceCalls::check; what it throws ends the communicator.
  void check_enqueued(bool done, std::optional<Seconds> expired);
  // Throws what went wrong in coding on devices that has run: it ends the communicator, on all ranks.
  void check_coding();
  bool coded_on_device() const { return coded_on_device_.load(std::memory_order_relaxed); }
  // Such a thing, or what was not done when it was closed, that no call has told; once.
  std::optional<Error> untold() {
    const std::lock_guard lock(mutex_);
    return std::exchange(untold_, {});
  }

  int rank() const { return rank_; }
  int world() const { return world_; }
  const std::vector<int>& nodes() const { return nodes_; }
  const std::string& transport_name() const { return transport_name_; }
  // Of this communicator; no other of any process has it. 0: its maker gave none.
  uint64_t identity() const { return identity_; }
  Seconds timeout() const { return timeout_; }
  const Links& links() const { return programs_.links(); }
  bool links_known() const { return links_known_; }
  void set_links(const Links& links);
  bool coding_known(const Codec& codec) const {
    std::lock_guard lock(mutex_);
    return programs_.coding_known(codec);
  }
  void set_coding(const Codec& codec, const Coding& coding) {
    std::lock_guard lock(mutex_);
    programs_.set_coding(codec, coding);
  }
  // Throws what is wrong with the algorithm or the codec of a call.
  void check_wish(const Shape& wish) const {
    std::lock_guard lock(mutex_);
    programs_.check(wish);
  }
  std::vector<Choice> candidates(const Shape& wish) {
    std::lock_guard lock(mutex_);
    return programs_.candidates(wish);
  }
  // As of Programs; 0: the links are not known.
  double agreement_time() {
    std::lock_guard lock(mutex_);
    return links_known_ ? programs_.agreement_time() : 0;
  }
  bool refuses_coding(const Shape& wish) {
    std::lock_guard lock(mutex_);
    return programs_.refuses_coding(wish);
  }
  // As of Programs; the same on all ranks once the calls of this kind before have been waited for.
  std::optional<Choice> settled_without_codec(const Shape& wish) {
    std::lock_guard lock(mutex_);
    return programs_.settled_without_codec(wish);
  }
  // Nothing is measured or learnt from here on: the same calls choose alike on every machine and in every
  // run.
  void freeze();
  bool frozen() const { return programs_.frozen(); }
  // What was learnt, and the use of what another run learnt.
  std::map<Kind, Programs::Learnt> learnt() const {
    std::lock_guard lock(mutex_);
    return programs_.learnt();
  }
  void replay(std::map<Kind, Programs::Learnt> learnt) {
    std::lock_guard lock(mutex_);
    programs_.replay(std::move(learnt));
  }

 private:
  void grow_scratch(size_t bytes);
  std::shared_ptr<Work> submit(const Shape& shape, const Arrays& arrays, Seconds timeout);
  std::shared_ptr<Work> submitted(const Shape& shape, const Arrays& arrays, Seconds timeout);
  std::shared_ptr<Work> enqueue(const Arrays& arrays, Seconds timeout);
  void agree(const std::shared_ptr<Tuning>& tuning, int settles, Seconds timeout);
  void begin(Work& work);
  void begin_on_device(Work& work);
  bool under_way(Work& work, bool& moved);
  bool under_way_on_device(Work& work, bool& moved);
  void meet(Work& work);
  bool met(Work& work, bool& moved);
  static void multiply(const Work& work);
  void check_calls(bool done, std::optional<Seconds> expired);
  void learn(Work& work);
  void count(const Work& work);
  void count_on_device(const Work& work);
  uint64_t sent_in(const Work& work) const;
  bool advance_front();
  void finish_front(const std::optional<Error>& error);
  Error fault(const Error& error);
  std::optional<Error> coding_error() const;
  void end(const Error& error);
  void interrupt() override;
  CallRecord record_of(const Work& work) const;
  uint64_t live_in(const Census& census, int round) const;
  void check_alike(const CallRecord& mine, int peer) const;
  void check_all_alike(const CallRecord& mine) const;
  void check_peers(const Work& work) const;
  void check_refusal(const Work& work, int peer) const;
  void check_unheard(const Work& work);
  [[noreturn]] void time_out(const Work& work, Seconds after) const;

  Fate fate_;
  PointToPoint messages_;
  std::string transport_name_;
  const uint64_t identity_;
  std::vector<int> nodes_;
  int rank_, world_;
  Seconds timeout_;
  mutable std::mutex mutex_;  // guards all below but the atomics
  std::deque<std::shared_ptr<Work>> queue_;
  Programs programs_;
  std::shared_ptr<Work> spare_;
  std::optional<SideCall> meeting_;  // from the first call that needs it
  Aligned scratch_;
  std::optional<DeviceWay> way_;
  NcclSource nccl_;
  std::unique_ptr<DeviceCalls> on_device_;  // from the first call on a device on
  size_t scratch_bytes_ = 0;
  Refusals refusals_;
  uint64_t looked_ms_ = 0;  // at calls of which this rank hears nothing
  int unheard_ = 0;         // such calls since then
  uint64_t shown_ms_ = 0;   // when ranks of other nodes were told of such a call
  uint64_t shown_ = 0;      // which it was; 0: none
  uint64_t sequence_ = 0, encodes_ = 0, decodes_ = 0, device_calls_ = 0;
  Transport::Counters device_traffic_;
  std::optional<Error> untold_;
  std::atomic<bool> links_known_{false}, left_{false}, coded_on_device_{false};
};

}  // namespace gpucomm
