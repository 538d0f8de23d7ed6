// Arrays that are read and written where they lie, in other processes.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "limit/limit.h"
#include "reduce/reduce.h"
#include "transports/remote.h"

namespace gpucomm {

// `from`: an address there.
void Limit::fetch(int rank, const float* from, float* to, size_t count) const {
  const auto address = reinterpret_cast<uint64_t>(from);
  if (const int why = read_process(peer(rank).pid, address, to, count * sizeof(float)))
    fail(ErrorKind::unavailable, "rank ", rank_, " cannot read rank ", rank, ": ", std::strerror(why));
}

// `to`: an address there.
void Limit::answer_to(int rank, const float* from, float* to, size_t count) const {
  const iovec target{to, count * sizeof(float)};
  if (!write_process(peer(rank).pid, reinterpret_cast<uint64_t>(from), target.iov_len, target))
    fail(ErrorKind::unavailable, "rank ", rank_, " cannot write into rank ", rank);
}

// Piece by piece, so that what is read, summed and written back stays in the cache.
void Limit::fold_pieces(float* x, Run run, const std::vector<float*>& arrays, bool answer) const {
  auto* const piece = reinterpret_cast<float*>(piece_.get());
  for (size_t begin = run.begin; begin < run.begin + run.count; begin += kChunk) {
    const size_t n = std::min(kChunk, run.begin + run.count - begin);
    for_others([&](int rank) {
      fetch(rank, arrays[rank] + begin, piece, n);
      const void* sources[] = {x + begin, piece};
      reduce(Dtype::float32, Op::sum, x + begin, sources, 2, n, 1);
    });
    if (!answer) continue;
    for_others([&](int rank) { answer_to(rank, x + begin, arrays[rank] + begin, n); });
  }
}

std::function<void()> Limit::attached(const std::string& collective, float* x, size_t count) {
  peer(rank_).array.store(reinterpret_cast<uint64_t>(x));
  barrier();
  std::vector<float*> arrays;
  for (int rank = 0; rank < world_; ++rank)
    arrays.push_back(reinterpret_cast<float*>(peer(rank).array.load()));
  barrier();
  const auto same = [=, this](int rank, Run run) {
    fetch(rank, arrays[rank] + run.begin, x + run.begin, run.count);
  };
  const size_t each = count / world_;
  std::map<std::string, std::function<void()>> calls{
      {"all_reduce", [=, this] { fold_pieces(x, share(count, rank_), arrays, true); }},
      {"reduce_scatter", [=, this] { fold_pieces(x, {rank_ * each, each}, arrays, false); }},
      {"all_gather", [=, this] { for_others([&](int rank) { same(rank, {rank * each, each}); }); }},
      // Where there are two, each copies a half.
      {"broadcast",
       [=, this] {
         const size_t half = world_ == 2 ? count / 2 : count;
         if (rank_) return same(0, {0, half});
         if (world_ != 2) return;
         answer_to(1, x + half, arrays[1] + half, count - half);
       }},
      {"reduce", [=, this] {
         if (!rank_) fold_pieces(x, {0, count}, arrays, false);
       }}};
  return [this, call = calls.at(collective)] {
    barrier();
    call();
    barrier();
  };
}

}  // namespace gpucomm
