#include "limit/limit.h"

#include <algorithm>

#include "base/copy.h"
#include "base/cpus.h"
#include "base/error.h"
#include "reduce/reduce.h"
#include "transports/remote.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>
#include <unistd.h>

namespace gpucomm {
namespace {

// A slot has left the core's cache before it is written again.
constexpr size_t kDepth = 8, kSmall = (16 << 10) / sizeof(float);
constexpr size_t kLine = 64 / sizeof(float);

void look_again([[maybe_unused]] bool yields) {
#if defined(__x86_64__)
  if (!yields) return _mm_pause();
#endif
  sched_yield();
}

}  // namespace

size_t Limit::region_bytes(int world) {
  return static_cast<size_t>(world) * (sizeof(Peer) + kDepth * kChunk * sizeof(float));
}

Limit::Limit(std::byte* region, int rank, int world, double timeout_s)
    : region_(region),
      rank_(rank),
      world_(world),
      timeout_(timeout_s),
      crowded_(world > usable_cpus()),
      piece_(allocate_aligned(4 << 10, kChunk * sizeof(float))) {
  if (!piece_) fail(ErrorKind::unavailable, "rank ", rank, " has no memory for a piece of a message");
  let_siblings_read();
  peer(rank).pid.store(getpid());
}

Limit::Peer& Limit::peer(int rank) const { return reinterpret_cast<Peer*>(region_)[rank]; }

void Limit::barrier() {
  constexpr int kSpins = 1 << 10, kLooks = 1 << 12;
  peer(rank_).steps.store(++steps_, std::memory_order_release);
  const auto begin = std::chrono::steady_clock::now();
  for_others([&](int other) {
    for (int i = 1; peer(other).steps.load(std::memory_order_acquire) < steps_; ++i) {
      look_again(crowded_ || i > kSpins);
      if (i % kLooks == 0 && std::chrono::steady_clock::now() - begin > timeout_)
        fail(ErrorKind::timeout, "rank ", rank_, " waited ", timeout_.count(), " s for rank ", other);
    }
  });
}

// This chunk's of a rank.
float* Limit::slot(int rank) const {
  const size_t slot = chunks_ % kDepth * world_ + rank;
  return reinterpret_cast<float*>(region_ + world_ * sizeof(Peer)) + slot * kChunk;
}

Limit::Run Limit::share(size_t count, int rank) const {
  const size_t each = round_up(count / world_, kLine);
  const size_t begin = std::min(count, each * rank);
  return {begin, rank == world_ - 1 ? count - begin : std::min(each, count - begin)};
}

template <class Chunk>
void Limit::by_chunks(size_t count, Chunk&& chunk) {
  for (size_t begin = 0; begin < count; begin += kChunk, ++chunks_)
    chunk(Run{begin, std::min(kChunk, count - begin)});
}

// The others' slots from `at` on into `own`, in the order of the ranks; the sum goes back into them.
void Limit::fold_slots(float* own, size_t at, size_t count, bool answer) const {
  constexpr size_t kBlock = (4 << 10) / sizeof(float);
  const size_t step = world_ == 2 ? count : kBlock;
  for (size_t begin = 0; begin < count; begin += step) {
    const size_t n = std::min(step, count - begin);
    std::vector<const void*> sources;
    for (int rank = 0; rank < world_; ++rank)
      sources.push_back(rank == rank_ ? own + begin : slot(rank) + at + begin);
    float* const twin = answer ? slot(rank_ ? 0 : 1) + at + begin : nullptr;
    reduce(Dtype::float32, Op::sum, own + begin, sources.data(), world_, n, 1, twin);
    for_others([&](int rank) {
      float* const back = slot(rank) + at + begin;
      if (answer && back != twin) copy_bytes(back, own + begin, n * sizeof(float));
    });
  }
}

// Everybody's to everybody, who sums all.
void Limit::exchange_small(float* x, size_t count) {
  by_chunks(count, [&](Run run) {
    copy_bytes(slot(rank_), x, run.count * sizeof(float));
    barrier();
    fold_slots(x, 0, run.count, false);
  });
}

// The sum goes back in the slot that a part came in: no line is rewritten that its reader still shares.
void Limit::all_reduce(float* x, size_t count) {
  by_chunks(count, [&](Run run) {
    float* const d = x + run.begin;
    for_others([&](int rank) {
      const Run part = share(run.count, rank);
      copy_bytes(slot(rank_) + part.begin, d + part.begin, part.count * sizeof(float));
    });
    barrier();
    const Run own = share(run.count, rank_);
    fold_slots(d + own.begin, own.begin, own.count, true);
    barrier();
    for_others([&](int rank) {
      const Run part = share(run.count, rank);
      copy_bytes(d + part.begin, slot(rank_) + part.begin, part.count * sizeof(float));
    });
  });
}

// reduce_scatter.
void Limit::to_each(float* x, size_t each) {
  const size_t most = kChunk / world_ / kLine * kLine;
  for (size_t begin = 0; begin < each; begin += most, ++chunks_) {
    const size_t n = std::min(most, each - begin);
    for_others(
        [&](int rank) { copy_bytes(slot(rank_) + rank * most, x + rank * each + begin, n * sizeof(float)); });
    barrier();
    fold_slots(x + rank_ * each + begin, rank_ * most, n, false);
  }
}

// all_gather.
void Limit::from_each(float* x, size_t each) {
  const bool far = each * world_ * world_ * sizeof(float) >= last_level_cache();
  by_chunks(each, [&](Run run) {
    copy_bytes(slot(rank_), x + rank_ * each + run.begin, run.count * sizeof(float));
    barrier();
    for_others([&](int rank) {
      (far ? copy_non_temporal : copy_bytes)(x + rank * each + run.begin, slot(rank),
                                             run.count * sizeof(float));
    });
  });
}

// broadcast.
void Limit::from_root(float* x, size_t count) {
  const bool far = count * world_ * sizeof(float) >= last_level_cache();
  by_chunks(count, [&](Run run) {
    if (rank_ == 0) copy_bytes(slot(0), x + run.begin, run.count * sizeof(float));
    barrier();
    if (rank_) (far ? copy_non_temporal : copy_bytes)(x + run.begin, slot(0), run.count * sizeof(float));
  });
}

// reduce.
void Limit::to_root(float* x, size_t count) {
  by_chunks(count, [&](Run run) {
    if (rank_) copy_bytes(slot(rank_), x + run.begin, run.count * sizeof(float));
    barrier();
    if (!rank_) fold_slots(x + run.begin, 0, run.count, false);
  });
}

std::function<void()> Limit::staged(const std::string& collective, float* x, size_t count) {
  if (collective == "all_reduce" && count <= kSmall) return [=, this] { exchange_small(x, count); };
  if (collective == "all_reduce") return [=, this] { all_reduce(x, count); };
  if (collective == "reduce_scatter") return [=, this] { to_each(x, count / world_); };
  if (collective == "all_gather") return [=, this] { from_each(x, count / world_); };
  if (collective == "broadcast") return [=, this] { from_root(x, count); };
  return [=, this] { to_root(x, count); };
}

std::function<void()> Limit::call(const std::string& collective, LimitWay way, float* x, size_t count) {
  return way == LimitWay::staged ? staged(collective, x, count) : attached(collective, x, count);
}

}  // namespace gpucomm
