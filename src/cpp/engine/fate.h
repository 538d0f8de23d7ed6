// Whether a communicator is open and, if not, what ended it; shared by its collectives and its messages.
#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "transports/transport.h"

namespace gpucomm {

// Throws the fault that another rank has reported, or else that a peer is lost, `why`, on which this rank
// `waits`.
[[noreturn]] void fail_lost(const Transport& transport, int peer, const std::string& why, int rank, int world,
                            const std::string& waits);

// A clause for each rank that is stopped, but one, for the text of a timeout.
std::string stopped_ranks(const Transport& transport, int world, int but);

class Fate {
 public:
  // `control`: carries the poison.
  Fate(std::shared_ptr<Transport> control, int rank, int world)
      : control_(std::move(control)), rank_(rank), world_(world) {}

  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // False: it was closed before.
  bool close() { return !closed_.exchange(true, std::memory_order_acq_rel); }
  // A fault ends the communicator, here and on every rank.
  void fail(const Error& error);
  bool failed() const;  // by a fault found here
  // Its end takes calls under way along: the others must hear of it before these calls' arrays are used
  // again.
  void abandon() const;
  void check_open() const;
  Error closed_error() const;  // with what ended it
  // Throws what any rank has found.
  void check_poison() const;
  // At the end of what may have been read where it lay: the same, for after a fault a peer may use its array
  // again while we still read there, so that what we have may be anything.
  void check_read_in_place(Transport& transport) const;
  // The fault that ended it, if one did, of any rank.
  std::optional<std::string> fault() const;
  // Throws peer_lost where a rank is gone that `waiting` (a clause) needs.
  void check_peer(int peer, const std::string& waiting) const;
  // An error that any exception in a call is to the ranks.
  Error error_of(const std::exception& exception) const;
  std::string where() const { return concat(" (rank ", rank_, " of ", world_, ")"); }
  Transport& control() const { return *control_; }
  int rank() const { return rank_; }
  int world() const { return world_; }

 private:
  std::shared_ptr<Transport> control_;
  int rank_, world_;
  mutable std::mutex mutex_;  // guards fault_
  std::optional<Error> fault_;
  std::atomic<bool> closed_{false};
};

}  // namespace gpucomm
