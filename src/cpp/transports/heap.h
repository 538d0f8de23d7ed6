// This rank's part of the shared memory, for arrays: what lies there, all ranks of the node can read.
//
// First fit over a map of free blocks. Only what has been asked for once takes memory; it stays with the heap
// when a block is freed, up to kKeptBytes.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "transports/transport.h"

namespace gpucomm {

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  static constexpr size_t kKeptBytes = 256 << 20;     // of free blocks
  static constexpr size_t kOwnPagesBytes = 64 << 10;  // blocks from here on share no page with others

  // The `bytes` of the region from `begin` on, both multiples of pages.
  Heap(std::shared_ptr<Region> region, size_t begin, size_t bytes);

  // A block on a border of 64 bytes, or of a page if it is that long; it keeps the memory mapped and comes
  // back with its last reference. Throws unavailable.
  std::shared_ptr<std::byte> allocate(size_t bytes);
  size_t size() const { return bytes_; }
  size_t used() const;    // in blocks
  size_t backed() const;  // memory taken from the machine

 private:
  using Blocks = std::map<size_t, size_t>;  // begin -> end, as offsets in the heap, disjoint

  size_t take(size_t bytes);
  void back(size_t begin, size_t end);
  void give_back(size_t begin, size_t end);
  void free(size_t begin, size_t end);

  std::shared_ptr<Region> region_;
  size_t begin_, bytes_;
  pid_t owner_;
  mutable std::mutex mutex_;  // guards all below
  Blocks free_, backed_;
  size_t used_ = 0, backed_bytes_ = 0;
};

}  // namespace gpucomm
