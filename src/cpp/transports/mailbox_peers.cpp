// What a rank tells its peers and knows of them: CPUs, heaps, and whose memory it may read.
#include <cerrno>
#include <cstring>

#include "base/cpus.h"
#include "base/env.h"
#include "transports/mailbox.h"
#include "transports/mailbox_entry.h"
#include "transports/mailbox_layout.h"

namespace gpucomm {

// A rank that could not map the heaps has none, and is lent nothing.
void Mailbox::open_heap() {
  const size_t each = reinterpret_cast<const RegionHeader*>(base_)->heap_bytes,
               mailboxes = mailbox_bytes(world_);
  if (!each || region_->size < mailboxes + each * world_) return;
  const size_t begin = mailboxes + each * rank_;
  heap_ = std::make_shared<Heap>(region_, begin, each);
  heap_begin_ = region_->base + begin, heap_end_ = heap_begin_ + each;
  area(rank_).maps_heaps.store(1, std::memory_order_release);
}

void Mailbox::tell_cpus() {
  const Cpus own = own_cpus();
  for (size_t i = 0; i < own.size(); ++i) area(rank_).cpus[i].store(own[i], std::memory_order_relaxed);
  area(rank_).told_cpus.store(1, std::memory_order_release);
}

// Once all ranks have attached.
void Mailbox::hear_cpus() {
  Cpus all{};
  for (int rank = 0; rank < world_; ++rank) {
    if (!area(rank).told_cpus.load(std::memory_order_acquire)) return;
    for (size_t i = 0; i < all.size(); ++i) all[i] |= area(rank).cpus[i].load(std::memory_order_relaxed);
  }
  meet_cpus(all);
  heard_cpus_ = true;
}

// Whether this rank can read the others, as they attach.
void Mailbox::probe_peers() {
  RankArea& own = area(rank_);
  for (int peer = 0; peer < world_; ++peer) {
    const uint64_t bit = uint64_t{1} << peer;
    const int64_t pid = area(peer).pid.load(std::memory_order_acquire);
    if (peer == rank_ || !pid || own.tried.load(std::memory_order_relaxed) & bit) continue;
    --unprobed_;
    uint64_t seen = 0;
    const uint64_t address = area(peer).cookie_address.load(std::memory_order_relaxed);
    const bool same = address && read_process(pid, address, &seen, sizeof seen) == 0 &&
                      seen == area(peer).cookie.load(std::memory_order_relaxed);
    if (same) own.reads.fetch_or(bit, std::memory_order_relaxed);
    own.tried.fetch_or(bit, std::memory_order_release);
  }
}

std::string Mailbox::reader(int rank) const {
  const uint64_t bit = uint64_t{1} << rank_;
  if (!who(rank_).first) return "the ranks are threads of one process";
  if (!cookie_) return "switched off here by GPUCOMM_CMA=0";
  if (!(area(rank).tried.load(std::memory_order_acquire) & bit))
    return "it has not tried yet, or is told not to";
  return area(rank).reads.load(std::memory_order_relaxed) & bit ? "" : "the kernel refused it";
}

// False: the peer has ended, or a fault has come. Whatever else stands in the way has come since it was
// probed, and does not go away.
bool Mailbox::read_private(int peer, uint64_t from, std::byte* to, size_t bytes) const {
  const int why = read_process(who(peer).first, from, to, bytes);
  if (why && why != ESRCH && !poisoned() && gone(peer).empty())
    fail(ErrorKind::unavailable, "rank ", rank_, " of ", world_, " can no longer read the memory of rank ",
         peer, " (", std::strerror(why), "), as it could before; GPUCOMM_CMA=0 does without");
  return why == 0;
}

bool Mailbox::fetchable(int peer, const std::byte* data, size_t bytes, const SendProgress& progress) {
  if (progress.receiver == Receiver::any || bytes < kLeastRemote) return false;
  if (!(area(peer).reads.load(std::memory_order_relaxed) >> rank_ & 1)) return false;
  const bool told = env().cma == 2 || progress.way == PrivateWay::attached;
  const bool wanted = told || (progress.way == PrivateWay::rule && quicker_fetched(data, bytes, progress));
  return wanted && copyable_.is(data, bytes);
}

// The rule of thumb.
bool Mailbox::quicker_fetched(const std::byte* data, size_t bytes, const SendProgress& progress) {
  const bool folds = progress.receiver == Receiver::folds;
  // The sender waits for its reader, which costs more where ranks outnumber cores.
  const bool crowded = world_ > usable_cpus();
  // Far beyond the caches memory is the limit: a receiver copies a slot past them, the kernel does not.
  constexpr size_t kFar = 4;
  if (!folds && !crowded && progress.footprint / kFar >= last_level_cache()) return false;
  const bool quick = small_page_speed().quick() && !(crowded && folds);
  constexpr size_t kLeastCopied = 32 << 10;  // a broadcast's sender has nothing else to do
  if (bytes < kLeastLong) return quick && !crowded && (folds || bytes >= kLeastCopied);
  return quick || huge_pages_.hold(data, bytes);
}

bool Mailbox::maps_heaps(int rank) const { return area(rank).maps_heaps.load(std::memory_order_acquire); }

std::string Mailbox::heap_note() const {
  if (heap_) return "";
  if (reinterpret_cast<const RegionHeader*>(base_)->heap_bytes)
    return "this process may not map the ranks' heaps (ulimit -v?)";
  return "the communicator was made without: GPUCOMM_HEAP_MIB is less than 2, or nothing could be mapped";
}

}  // namespace gpucomm
