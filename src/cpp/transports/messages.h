// A transport over a wire: messages are cut into chunks that carry their tag, staged in a bounded ring of
// buffers for each peer. Memory is taken when a peer is first met.
#pragma once
#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "transports/control.h"

namespace gpucomm {

class Messages : public Transport {
 public:
  // `ranks`: the wire's number of each rank. `context` sets communicators that share the wire apart.
  Messages(std::shared_ptr<Wire> wire, int rank, const std::vector<int>& ranks, int context, int channel);
  ~Messages() override;

  bool send(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) override;
  bool flush(int peer) override;
  const Chunk* peek(int peer) override;
  void consume(int peer) override;
  uint32_t begin_sleep() override;
  void sleep(uint32_t ticket, std::chrono::microseconds at_most) override;
  void end_sleep() override {}
  void wake_self() override;
  // How long one may sleep now without missing much, for nothing wakes who waits for a wire.
  std::chrono::microseconds nap();

  void announce(const CallRecord& record) override;
  void complete(uint64_t sequence) override { control_.complete(sequence); }
  CallRecord call(int rank, uint64_t sequence) const override { return control_.call(rank, sequence); }
  uint64_t arrived(int rank) const override { return control_.arrived(rank); }
  uint64_t completed(int rank) const override { return control_.completed(rank); }
  void look() override { control_.look(); }
  bool show() override {
    control_.show();
    return true;
  }
  void refuse(const Refusal& refusal) override { control_.refuse(refusal); }
  Refusal refusal(int rank) const override { return control_.refusal(rank); }
  void tell(int peer, uint64_t word) override;
  uint64_t told(int peer) override { return control_.told(peer); }
  void leave() override;
  void withdraw() override { withdrawn_ = true; }
  std::string gone(int rank) const override { return control_.left(rank) ? kHasClosed : ""; }
  std::string describe(int rank) const override { return control_.silence(rank); }
  void poison(const Poison& poison) override { control_.poison(poison); }
  bool poisoned() const override { return control_.poisoned(); }
  Poison poison() const override { return control_.poison(); }
  Counters counters() const override { return {bytes_sent_.load(), bytes_received_.load(), sent_.load()}; }

 private:
  static constexpr int kDepth = 4;
  struct Header {
    uint64_t tag, bytes;
  };
  struct Ring {  // entries [oldest, next) are under way
    std::unique_ptr<std::byte[]> memory;
    std::array<Wire::Request, kDepth> requests{};
    uint32_t oldest = 0, next = 0;
  };
  struct Peer {
    Ring out, in;
    bool here = false;  // the oldest of `in` has come
    Chunk chunk;
  };
  std::byte* entry(Ring& ring, uint32_t index);
  void post(int peer);
  bool reap(Ring& ring);
  void cancel();

  std::shared_ptr<Wire> wire_;
  int rank_;
  std::vector<int> ranks_;
  int stream_;
  size_t chunk_bytes_;
  std::vector<Peer> peers_;
  mutable Control control_;
  std::atomic<bool> withdrawn_{false};
  std::atomic<int64_t> idle_since_{0};  // ns of the steady clock, of who waits; 0: something has just moved
  std::mutex mutex_;                    // guards the bell
  std::condition_variable bell_;
  uint32_t rings_ = 0;
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0}, sent_{0};
};

}  // namespace gpucomm
