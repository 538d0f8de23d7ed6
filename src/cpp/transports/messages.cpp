#include "transports/messages.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/clock.h"

namespace gpucomm {
namespace {

using namespace std::chrono_literals;
constexpr size_t kMemory = 8 << 20;  // of all rings together
constexpr size_t kMostChunk = 256 << 10, kLeastChunk = 4 << 10;
constexpr auto kLeastNap = 20us, kMostNap = 1000us;

enum Stream { kData, kControl, kStreams };

size_t chunk_bytes(size_t world, int depth) {
  return std::clamp(std::bit_floor(kMemory / (2 * depth * std::max<size_t>(1, world - 1))), kLeastChunk,
                    kMostChunk);
}

// Two channels of two streams for each context.
int stream(int context, int channel, Stream stream) { return (2 * context + channel) * kStreams + stream; }

}  // namespace

Messages::Messages(std::shared_ptr<Wire> wire, int rank, const std::vector<int>& ranks, int context,
                   int channel)
    : wire_(std::move(wire)),
      rank_(rank),
      ranks_(ranks),
      stream_(stream(context, channel, kData)),
      chunk_bytes_(chunk_bytes(ranks.size(), kDepth)),
      peers_(ranks.size()),
      control_(wire_, rank, ranks, stream(context, channel, kControl)) {}

Messages::~Messages() {
  cancel();
  for (Peer& peer : peers_)  // a lost peer's: the wire may still read it
    if (peer.out.oldest != peer.out.next) static_cast<void>(peer.out.memory.release());
}

void Messages::cancel() {
  for (Peer& peer : peers_) {
    if (peer.here) ++peer.in.oldest;
    peer.here = false;
    bool kept = false;
    for (; peer.in.oldest != peer.in.next; ++peer.in.oldest)
      kept |= !wire_->cancel(peer.in.requests[peer.in.oldest % kDepth]);
    if (kept) static_cast<void>(peer.in.memory.release());
  }
}

std::byte* Messages::entry(Ring& ring, uint32_t index) {
  const size_t bytes = sizeof(Header) + chunk_bytes_;
  if (!ring.memory) ring.memory = std::make_unique_for_overwrite<std::byte[]>(bytes * kDepth);
  return ring.memory.get() + index % kDepth * bytes;
}

// True if an entry is free.
bool Messages::reap(Ring& ring) {
  while (ring.oldest != ring.next && wire_->done(ring.requests[ring.oldest % kDepth])) ++ring.oldest;
  return ring.next - ring.oldest < kDepth;
}

bool Messages::send(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) {
  Ring& ring = peers_[peer].out;
  while (!progress.begun || progress.moved < bytes) {
    if (!reap(ring)) return false;
    std::byte* to = entry(ring, ring.next);
    const size_t n = std::min(bytes - progress.moved, chunk_bytes_);
    const Header header{tag, n};
    std::memcpy(to, &header, sizeof header);
    if (n) std::memcpy(to + sizeof header, data + progress.moved, n);
    // One in every turn of the ring waits for its receiver, so that nobody runs far ahead of it.
    const bool matched = ring.next % kDepth == kDepth - 1;
    ring.requests[ring.next % kDepth] =
        wire_->send({ranks_[peer], peer}, stream_, to, sizeof header + n, matched);
    ++ring.next;
    progress.moved += n, progress.begun = true;
    bytes_sent_.fetch_add(n, std::memory_order_relaxed);
    sent_.fetch_add(1, std::memory_order_relaxed);
    idle_since_.store(0, std::memory_order_relaxed);
  }
  return true;
}

bool Messages::flush(int peer) {
  if (peer == kEverybody) {
    bool all = true;
    for (size_t i = 0; i < peers_.size(); ++i) all &= flush(static_cast<int>(i));
    return all;
  }
  Ring& ring = peers_[peer].out;
  reap(ring);
  return ring.oldest == ring.next;
}

void Messages::post(int peer) {
  Ring& ring = peers_[peer].in;
  std::byte* to = entry(ring, ring.next);
  ring.requests[ring.next++ % kDepth] =
      wire_->receive({ranks_[peer], peer}, stream_, to, sizeof(Header) + chunk_bytes_);
}

const Chunk* Messages::peek(int peer) {
  Peer& p = peers_[peer];
  if (p.here) return &p.chunk;
  while (p.in.next - p.in.oldest < kDepth) post(peer);
  if (!wire_->done(p.in.requests[p.in.oldest % kDepth])) return nullptr;
  const std::byte* data = entry(p.in, p.in.oldest);
  Header header;
  std::memcpy(&header, data, sizeof header);
  if (header.bytes > chunk_bytes_)
    fail(ErrorKind::mismatch, "a message from rank ", peer, " is cut into chunks of ", header.bytes,
         " bytes, ours hold ", chunk_bytes_, ": do all ranks run the same version of gpucomm?");
  p.chunk = {data + sizeof header, header.bytes, header.tag};
  p.here = true;
  idle_since_.store(0, std::memory_order_relaxed);
  return &p.chunk;
}

void Messages::consume(int peer) {
  Peer& p = peers_[peer];
  bytes_received_.fetch_add(p.chunk.bytes, std::memory_order_relaxed);
  p.here = false;
  ++p.in.oldest;
}

std::chrono::microseconds Messages::nap() {
  const auto now = static_cast<int64_t>(steady_ns());
  int64_t since = 0;
  if (idle_since_.compare_exchange_strong(since, now, std::memory_order_relaxed)) since = now;
  return std::clamp<std::chrono::microseconds>(std::chrono::microseconds((now - since) / 8000), kLeastNap,
                                               kMostNap);
}

uint32_t Messages::begin_sleep() {
  std::lock_guard lock(mutex_);
  return rings_;
}

void Messages::sleep(uint32_t ticket, std::chrono::microseconds at_most) {
  std::unique_lock lock(mutex_);
  bell_.wait_for(lock, std::min(at_most, nap()), [&] { return rings_ != ticket; });
}

void Messages::wake_self() {
  std::lock_guard lock(mutex_);
  ++rings_;
  bell_.notify_all();
}

void Messages::announce(const CallRecord& record) {
  idle_since_.store(0, std::memory_order_relaxed);
  control_.announce(record);
}

void Messages::tell(int peer, uint64_t word) {
  idle_since_.store(0, std::memory_order_relaxed);
  control_.tell(peer, word);
}

void Messages::leave() {
  control_.leave(withdrawn_);
  // A peer waits for a receive in each turn of its ring, which is at most a turn ahead of those posted, and
  // may have sent most of another turn.
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
    if (peer != rank_) wire_->leave({ranks_[peer], peer}, stream_, sizeof(Header) + chunk_bytes_, 2 * kDepth);
  cancel();
}

}  // namespace gpucomm
