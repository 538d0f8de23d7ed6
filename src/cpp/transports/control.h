// What ranks that share no memory tell each other besides data: which calls they are in, which they
// have refused, that they leave, words, and poison. A rank that waits asks the others now and then; who is in
// a call, or has a progress thread at work, answers.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transports/transport.h"
#include "transports/wire.h"

namespace gpucomm {

// Members may be called from several threads at once.
class Control {
 public:
  // `ranks`: the wire's number of each rank.
  Control(std::shared_ptr<Wire> wire, int rank, std::vector<int> ranks, int stream);
  ~Control();

  void announce(const CallRecord& record);
  void complete(uint64_t sequence);
  // Receives what has come, answers, and asks all others, now and then, which call they are in.
  void look();
  // Tells all others which call this rank is in.
  void show();
  // As those of Transport.
  void refuse(const Refusal& refusal);
  Refusal refusal(int rank) const;
  void tell(int peer, uint64_t word);
  uint64_t told(int peer);
  void leave(bool after_fault);
  void poison(const Poison& poison);

  CallRecord call(int rank, uint64_t sequence) const;
  uint64_t arrived(int rank) const;
  uint64_t completed(int rank) const;
  bool left(int rank) const;
  // "not heard of", or since when it has not answered; empty: it has.
  std::string silence(int rank) const;
  bool poisoned();
  Poison poison() const;

 private:
  struct Message;
  struct Peer {
    std::vector<CallRecord> calls = std::vector<CallRecord>(kRememberedCalls);
    uint64_t arrived = 0, completed = 0, asked = 0, word = 0;
    bool left = false, heard_of = false;
    std::optional<std::chrono::steady_clock::time_point> unanswered;  // first asked since it has spoken
    Refusal refusal;
    std::unique_ptr<Message> inbox;
    Wire::Request request = 0;
  };
  struct Sent {
    Wire::Request request;
    std::unique_ptr<Message> message;
  };
  void receive();
  void take(int rank, const Message& message);
  void send(int rank, Message message);
  Message state(uint32_t kind, uint64_t sequence) const;
  void broadcast(const Message& message);
  void reap();
  void flush(std::chrono::milliseconds at_most);
  void cancel();
  void keep(int rank, const CallRecord& record);

  mutable std::mutex mutex_;  // guards all below
  std::shared_ptr<Wire> wire_;
  int rank_, world_, stream_;
  std::vector<int> ranks_;
  std::vector<Peer> peers_;  // of this rank too: what it has announced
  std::deque<Sent> sent_;
  Poison poison_;
  std::chrono::steady_clock::time_point looked_{}, announced_{}, asked_{};
};

}  // namespace gpucomm
