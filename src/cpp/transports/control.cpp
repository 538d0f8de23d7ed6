#include "transports/control.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/soon.h"

namespace gpucomm {
namespace {

using namespace std::chrono_literals;
enum Kind : uint32_t { kAsk, kTell, kLeft, kPoison, kWord, kRefused };
constexpr auto kLeast = 1ms;         // between two looks that nobody waits for
constexpr auto kBrisk = 50us;        // ... and where a call waits for what comes
constexpr auto kSoon = 20ms;         // a call that takes no longer is not asked after
constexpr auto kAgain = 300ms;       // until it is asked after once more, at least
constexpr auto kFarewell = 2000ms;   // how long who leaves waits until its last words are on their way
constexpr auto kAlarm = 200ms;       // ... and who tells of a fault, or leaves after one
constexpr size_t kTextBytes = 1500;  // as in a mailbox

}  // namespace

struct Control::Message {
  uint32_t kind = kTell;
  int32_t poison_rank = -1;
  uint64_t arrived = 0, completed = 0, asked = 0, times = 0;
  uint64_t words[CallRecord::kWords] = {};
  uint32_t poison_kind = 0, text_bytes = 0;
  char text[kTextBytes] = {};
  std::string said() const { return {text, std::min<size_t>(text_bytes, kTextBytes)}; }
  void say(const std::string& what) {
    text_bytes = static_cast<uint32_t>(std::min(what.size(), kTextBytes));
    std::memcpy(text, what.data(), text_bytes);
  }
  size_t bytes() const { return offsetof(Message, text) + text_bytes; }
};

Control::Control(std::shared_ptr<Wire> wire, int rank, std::vector<int> ranks, int stream)
    : wire_(std::move(wire)),
      rank_(rank),
      world_(static_cast<int>(ranks.size())),
      stream_(stream),
      ranks_(std::move(ranks)),
      peers_(world_) {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    Peer& p = peers_[peer];
    p.inbox = std::make_unique<Message>();
    p.request = wire_->receive({ranks_[peer], peer}, stream_, reinterpret_cast<std::byte*>(p.inbox.get()),
                               sizeof(Message));
  }
}

Control::~Control() {
  cancel();
  for (Sent& sent : sent_) static_cast<void>(sent.message.release());  // the wire may still read it
}

void Control::cancel() {
  for (Peer& peer : peers_) {
    if (peer.inbox && !wire_->cancel(peer.request)) static_cast<void>(peer.inbox.release());
    peer.inbox.reset();
  }
}

void Control::keep(int rank, const CallRecord& record) {
  if (record.in_use) peers_[rank].calls[record.sequence % kRememberedCalls] = record;
}

void Control::announce(const CallRecord& record) {
  std::lock_guard lock(mutex_);
  keep(rank_, record);
  peers_[rank_].arrived = record.sequence;
  announced_ = std::chrono::steady_clock::now();
}

void Control::complete(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  peers_[rank_].completed = sequence;
}

void Control::look() {
  std::lock_guard lock(mutex_);
  receive();
  const auto waited = looked_ - announced_;
  if (waited < kSoon) return;
  const uint64_t now = peers_[rank_].arrived;
  // Some wires notice that a peer has gone only when they send to it.
  const bool again = looked_ - asked_ >= std::max<std::chrono::nanoseconds>(kAgain, waited / 8);
  if (again) asked_ = looked_;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_ || (peers_[peer].asked >= now && !again) || peers_[peer].left) continue;
    peers_[peer].asked = now;
    if (!peers_[peer].unanswered) peers_[peer].unanswered = looked_;
    send(peer, state(kAsk, now));
  }
}

void Control::show() {
  std::lock_guard lock(mutex_);
  broadcast(state(kTell, peers_[rank_].arrived));
}

void Control::receive() {
  looked_ = std::chrono::steady_clock::now();
  reap();
  for (int peer = 0; peer < world_; ++peer) {
    Peer& p = peers_[peer];
    while (p.inbox && wire_->done(p.request)) {
      // Both below may throw: a request that has ended must not be asked about again.
      std::unique_ptr<Message> inbox = std::move(p.inbox);
      const Message message = std::exchange(*inbox, {});
      // Who has left says no more. Its process may end, and a receive from it would fail, and the wire to it
      // with that.
      if (message.kind != kLeft) {
        auto* const bytes = reinterpret_cast<std::byte*>(inbox.get());
        p.request = wire_->receive({ranks_[peer], peer}, stream_, bytes, sizeof(Message));
        p.inbox = std::move(inbox);
      }
      take(peer, message);
    }
  }
}

void Control::take(int rank, const Message& message) {
  Peer& peer = peers_[rank];
  peer.heard_of = true, peer.unanswered.reset();
  peer.arrived = std::max(peer.arrived, message.arrived);
  peer.completed = std::max(peer.completed, message.completed);
  CallRecord record;
  std::memcpy(&record, message.words, sizeof record);
  keep(rank, record);
  if (message.kind == kLeft) peer.left = true;
  if (message.kind == kWord) peer.word = std::max(peer.word, message.asked);
  if (message.kind == kAsk) send(rank, state(kTell, message.asked));
  if (message.kind == kRefused) peer.refusal = {message.asked, message.times, looked_, message.said()};
  if (message.kind == kPoison && poison_.rank < 0)
    poison_ = {message.poison_rank, static_cast<ErrorKind>(message.poison_kind), message.said()};
}

// Where this rank is, with its record of one call.
Control::Message Control::state(uint32_t kind, uint64_t sequence) const {
  const Peer& own = peers_[rank_];
  Message message{.kind = kind, .arrived = own.arrived, .completed = own.completed, .asked = sequence};
  const CallRecord& record = own.calls[sequence % kRememberedCalls];
  if (record.sequence == sequence) std::memcpy(message.words, &record, sizeof record);
  return message;
}

void Control::send(int rank, Message message) {
  auto kept = std::make_unique<Message>(message);
  const auto* data = reinterpret_cast<const std::byte*>(kept.get());
  const auto request = wire_->send({ranks_[rank], rank}, stream_, data, kept->bytes(), false);
  sent_.push_back({request, std::move(kept)});
}

// To all whom it still reaches: that the line to one has failed, those learn who wait for it.
void Control::broadcast(const Message& message) {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_ || peers_[peer].left) continue;
    try {
      send(peer, message);
    } catch (const Error&) {
    }
  }
}

void Control::reap() {
  // One by one: what has ended is forgotten though the next one throws.
  for (auto sent = sent_.begin(); sent != sent_.end();)
    sent = wire_->done(sent->request) ? sent_.erase(sent) : std::next(sent);
}

// Until all that was said is on its way, or a line has failed.
void Control::flush(std::chrono::milliseconds at_most) try {
  soon(at_most, [this] {
    reap();
    return sent_.empty();
  });
} catch (const Error&) {
}

void Control::refuse(const Refusal& refusal) {
  std::lock_guard lock(mutex_);
  Message message = state(kRefused, refusal.sequence);
  message.times = refusal.times;
  message.say(refusal.text);
  broadcast(message);
}

Refusal Control::refusal(int rank) const {
  std::lock_guard lock(mutex_);
  return peers_[rank].refusal;
}

void Control::tell(int peer, uint64_t word) {
  std::lock_guard lock(mutex_);
  if (!peers_[peer].left) send(peer, {.kind = kWord, .asked = word});
}

uint64_t Control::told(int peer) {
  std::lock_guard lock(mutex_);
  if (std::chrono::steady_clock::now() - looked_ > kBrisk) receive();
  return peers_[peer].word;
}

void Control::leave(bool after_fault) {
  // A connection that ends may be noticed before what was said on it last.
  if (poison().rank >= 0) std::this_thread::sleep_for(kAlarm), after_fault = true;
  std::lock_guard lock(mutex_);
  broadcast(state(kLeft, peers_[rank_].arrived));
  flush(after_fault ? kAlarm : kFarewell);
  cancel();
}

void Control::poison(const Poison& poison) {
  std::lock_guard lock(mutex_);
  if (poison_.rank >= 0) return;
  poison_ = poison;
  Message message = state(kPoison, peers_[rank_].arrived);
  message.poison_rank = poison.rank, message.poison_kind = static_cast<uint32_t>(poison.kind);
  message.say(poison.text);
  broadcast(message);
  flush(kAlarm);
}

bool Control::poisoned() {
  std::lock_guard lock(mutex_);
  if (std::chrono::steady_clock::now() - looked_ > kLeast) receive();
  return poison_.rank >= 0;
}

Poison Control::poison() const {
  std::lock_guard lock(mutex_);
  return poison_;
}

CallRecord Control::call(int rank, uint64_t sequence) const {
  std::lock_guard lock(mutex_);
  CallRecord record = peers_[rank].calls[sequence % kRememberedCalls];
  if (record.sequence != sequence) record.in_use = 0;
  return record;
}

uint64_t Control::arrived(int rank) const {
  std::lock_guard lock(mutex_);
  return peers_[rank].arrived;
}

uint64_t Control::completed(int rank) const {
  std::lock_guard lock(mutex_);
  return peers_[rank].completed;
}

bool Control::left(int rank) const {
  std::lock_guard lock(mutex_);
  return peers_[rank].left;
}

std::string Control::silence(int rank) const {
  std::lock_guard lock(mutex_);
  const Peer& peer = peers_[rank];
  if (rank == rank_) return "";
  if (!peer.heard_of) return "not heard of";
  if (!peer.unanswered) return "";
  const auto waited =
      std::chrono::floor<std::chrono::seconds>(std::chrono::steady_clock::now() - *peer.unanswered);
  return waited < 1s ? "" : concat("not heard of for ", waited.count(), " s");
}

}  // namespace gpucomm
