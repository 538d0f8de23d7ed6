#include "transports/heap.h"

#include <unistd.h>

#include <algorithm>

#include "base/aligned.h"
#include "base/error.h"
#include "base/pages.h"

namespace gpucomm {
namespace {

using Blocks = std::map<size_t, size_t>;

// Adds [begin, end), which touches no block but at its borders, and joins it to its neighbours.
void join(Blocks& blocks, size_t begin, size_t end) {
  auto next = blocks.lower_bound(begin);
  if (next != blocks.end() && next->first == end) end = next->second, next = blocks.erase(next);
  if (next != blocks.begin() && std::prev(next)->second == begin)
    std::prev(next)->second = end;
  else
    blocks[begin] = end;
}

// Calls part(begin, end) for each of the blocks' parts inside [begin, end).
template <class Part>
void overlaps(const Blocks& blocks, size_t begin, size_t end, Part part) {
  auto block = blocks.upper_bound(begin);
  if (block != blocks.begin() && std::prev(block)->second > begin) --block;
  for (; block != blocks.end() && block->first < end; ++block)
    part(std::max(begin, block->first), std::min(end, block->second));
}

}  // namespace

Heap::Heap(std::shared_ptr<Region> region, size_t begin, size_t bytes)
    : region_(std::move(region)), begin_(begin), bytes_(bytes), owner_(getpid()) {
  if (bytes_) free_[0] = bytes_;
}

std::shared_ptr<std::byte> Heap::allocate(size_t bytes) {
  if (bytes > bytes_)
    fail(ErrorKind::unavailable, bytes, " bytes do not fit into this rank's shared heap of ", bytes_,
         " bytes");
  const size_t least = round_up(std::max<size_t>(bytes, 1), 64);
  const size_t size = least >= kOwnPagesBytes ? page_end(least) : least;
  std::lock_guard lock(mutex_);
  const size_t begin = take(size), end = begin + size;
  try {
    back(page_begin(begin), page_end(end));
  } catch (...) {
    join(free_, begin, end), used_ -= size;
    throw;
  }
  auto keep = shared_from_this();
  return {region_->base + begin_ + begin, [keep, begin, end](std::byte*) { keep->free(begin, end); }};
}

// Finds room and takes it off the free blocks.
size_t Heap::take(size_t size) {
  const size_t align = size >= kOwnPagesBytes ? page_bytes() : 64;
  size_t largest = 0;
  for (auto [begin, end] : free_) {
    const size_t at = round_up(begin, align);
    largest = std::max(largest, end - begin);
    if (at + size > end) continue;
    free_.erase(begin);
    if (at > begin) free_[begin] = at;
    if (at + size < end) free_[at + size] = end;
    used_ += size;
    return at;
  }
  fail(ErrorKind::unavailable, "this rank's shared heap of ", bytes_, " bytes has no room for ", size,
       " more: ", used_, " are in use, the largest free block has ", largest);
}

// Memory for the pages that have none yet. Asked for now: touching a page that the machine cannot give would
// end the process.
void Heap::back(size_t begin, size_t end) {
  Blocks missing{{begin, end}};
  overlaps(backed_, begin, end, [&](size_t b, size_t e) {
    auto last = std::prev(missing.end());
    const size_t from = last->first;
    missing.erase(last);
    if (from < b) missing[from] = b;
    missing[e] = end;
  });
  for (auto [b, e] : missing) {
    if (b == e) continue;
    if (const std::string why = region_->back(begin_ + b, e - b); !why.empty())
      fail(ErrorKind::unavailable, "the machine has no ", e - b, " bytes of shared memory more (", why,
           "); this rank's shared heap holds ", backed_bytes_, " already");
    join(backed_, b, e), backed_bytes_ += e - b;
  }
}

void Heap::give_back(size_t begin, size_t end) {
  Blocks given;
  overlaps(backed_, begin, end, [&](size_t b, size_t e) { given[b] = e; });
  for (auto [b, e] : given) {
    auto block = std::prev(backed_.upper_bound(b));
    const auto [from, to] = *block;
    backed_.erase(block);
    if (from < b) backed_[from] = b;
    if (e < to) backed_[e] = to;
    region_->unback(begin_ + b, e - b), backed_bytes_ -= e - b;
  }
}

void Heap::free(size_t begin, size_t end) {
  if (getpid() != owner_) return;  // a forked child: the memory is its parent's
  std::lock_guard lock(mutex_);
  used_ -= end - begin;
  join(free_, begin, end);
  if (end - begin >= kOwnPagesBytes && backed_bytes_ > used_ + kKeptBytes) give_back(begin, end);
}

size_t Heap::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

size_t Heap::backed() const {
  std::lock_guard lock(mutex_);
  return backed_bytes_;
}

}  // namespace gpucomm
