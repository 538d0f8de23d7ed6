// Who goes on after a fault. Every rank that comes sets its bit; who finds that all live ones have come, or
// has waited long enough, proposes them, and the first proposal holds.
#include <algorithm>
#include <thread>

#include "engine/communicator.h"

namespace gpucomm {

static Census& census_of(Transport& transport, int round) {
  Census* census = transport.census();
  if (!census)
    fail(ErrorKind::unavailable, "shrink() needs memory that all ranks share, this transport has none");
  if (round < 0 || round >= Census::kRounds)
    fail(ErrorKind::peer_lost, "shrink() gives up: ranks were lost in each of ", Census::kRounds,
         " attempts");
  return *census;
}

// Those that are there, and have not been left behind in the round before.
uint64_t Communicator::live_in(const Census& census, int round) const {
  uint64_t live = 0;
  for (int rank = 0; rank < world_; ++rank)
    if (transport_->gone(rank).empty()) live |= uint64_t{1} << rank;
  if (round) live &= census.members[round - 1].load(std::memory_order_acquire);
  if (!(live >> rank_ & 1))
    fail(ErrorKind::closed, "the others have gone on without this rank", fate_.where());
  return live;
}

std::vector<int> Communicator::survivors(int round, Seconds patience) {
  Census& census = census_of(*transport_, round);
  const auto fault = fate_.fault();
  if (!fault)
    fail(ErrorKind::invalid_argument, "shrink() is for after a fault, this communicator has had none",
         fate_.where());
  if (left_.load())
    fail(ErrorKind::closed, "shrink() comes before close(): this rank has left the communicator",
         fate_.where());
  const Error error(ErrorKind::closed, concat("this communicator is closed after a fault: ", *fault));
  if (fate_.close()) end(error), messages_.end(error);
  census.came[round].fetch_or(uint64_t{1} << rank_);
  const auto deadline = Clock::now() + clock_time(patience);
  auto nap = std::chrono::milliseconds(1);
  uint64_t members;
  while (!(members = census.members[round].load(std::memory_order_acquire))) {
    const uint64_t live = live_in(census, round);
    const uint64_t came = census.came[round].load(std::memory_order_acquire) & live;
    uint64_t none = 0;
    if (came == live || Clock::now() >= deadline) {
      census.members[round].compare_exchange_strong(none, came);
      continue;
    }
    if (interrupted()) fail(ErrorKind::closed, "interrupted by a signal in shrink()", fate_.where());
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, std::chrono::milliseconds(20));
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < world_; ++rank)
    if (members >> rank & 1) ranks.push_back(rank);
  return ranks;
}

enum : uint64_t { undecided, kept, abandoned };

bool Communicator::keep(int round, bool proposal) {
  uint64_t found = undecided;
  const uint64_t mine = proposal ? kept : abandoned;
  return (census_of(*transport_, round).outcome[round].compare_exchange_strong(found, mine) ? mine : found) ==
         kept;
}

bool Communicator::abandoned_in(int round) {
  return census_of(*transport_, round).outcome[round].load(std::memory_order_acquire) == abandoned;
}

}  // namespace gpucomm
