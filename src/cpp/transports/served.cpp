#include "transports/served.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "base/copy.h"
#include "base/error.h"
#include "base/pages.h"

namespace gpucomm {
namespace {

constexpr auto kIdle = std::chrono::seconds(2);  // groups come and go: their threads must go too
// A frame: the payload's size plus 1, the payload, and the message's number on its line.
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kFraming = 2 * kWord;

uint64_t word(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, kWord);
  return value;
}

// The pages that lie in it as a whole are the kernel's again; read, they hold zeros.
void give_back(std::byte* begin, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t from = page_end(first), to = page_begin(first + bytes);
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

}  // namespace

Wire::Request ServedWire::send(Peer peer, int stream, const std::byte* data, size_t bytes, bool matched) {
  const Line line{peer.number, stream};
  Frame frame{.matched = matched, .bytes = std::string(bytes + kFraming, '\0')};
  const uint64_t size = bytes + 1;
  std::memcpy(frame.bytes.data(), &size, kWord);
  copy_bytes(frame.bytes.data() + kWord, data, bytes);
  std::lock_guard lock(mutex_);
  const uint64_t number = ++sent_[line];
  std::memcpy(frame.bytes.data() + kWord + bytes, &number, kWord);
  frame.request = next_++;
  if (matched) pending_[frame.request] = {.line = line, .rank = peer.rank};  // the frame is a copy
  const Request request = frame.request;
  push(line, std::move(frame));
  news_.notify_all();
  return request;
}

Wire::Request ServedWire::receive(Peer peer, int stream, std::byte* data, size_t most) {
  const Line line{peer.number, stream};
  std::lock_guard lock(mutex_);
  const Request request = next_++;
  pending_[request] = {
      .line = line, .rank = peer.rank, .data = data, .most = most, .number = ++received_[line]};
  events_.push_back({Event::Kind::receive, line, request, most + kFraming});
  news_.notify_all();
  return request;
}

void ServedWire::leave(Peer peer, int stream, size_t most, int count) {
  const Line line{peer.number, stream};
  std::lock_guard lock(mutex_);
  for (int i = 0; i < count; ++i) events_.push_back({Event::Kind::drop, line, next_++, most + kFraming});
  if (sent_.erase(line)) push(line, {.last = true});
  received_.erase(line);
  news_.notify_all();
}

void ServedWire::push(const Line& line, Frame frame) {
  sends_[line].push_back(std::move(frame));
  if (served_.insert(line).second) events_.push_back({Event::Kind::line, line});
}

// What comes ends in its frame, which the library keeps for good: the address, but no memory, while none
// does.
bool ServedWire::cancel(Request request) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(request);
  if (found == pending_.end()) return true;
  if (const Pending& p = found->second; p.frame) give_back(p.frame, p.most + kFraming);
  pending_.erase(found);
  return true;
}

// Whether the end of a frame can be seen. Its bytes may be read only after the library has said so too.
bool ServedWire::complete(const Pending& receive) const {
  std::atomic_thread_fence(std::memory_order_acquire);  // written meanwhile, by the library's thread
  const uint64_t size = word(receive.frame);
  return size && size <= receive.most + 1 && word(receive.frame + kWord + size - 1) == receive.number;
}

bool ServedWire::done(Request request) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(request);
  if (found == pending_.end()) return true;
  Pending& p = found->second;
  if (p.come) return false;
  if (p.frame && complete(p)) {  // also where the line has failed since
    p.come = true;
    events_.push_back({Event::Kind::come, p.line, request});
    news_.notify_all();
  } else if (const auto failed = failures_.find(p.line); failed != failures_.end()) {
    fail(ErrorKind::peer_lost, "the connection to rank ", p.rank, " has failed: ", failed->second);
  }
  return false;
}

std::optional<ServedWire::Event> ServedWire::next_event() {
  std::unique_lock lock(mutex_);
  news_.wait(lock, [&] { return closed_ || !events_.empty(); });
  if (events_.empty()) return {};
  const Event event = events_.front();
  events_.pop_front();
  return event;
}

std::optional<ServedWire::Frame> ServedWire::next_send(const Line& line) {
  std::unique_lock lock(mutex_);
  auto& queue = sends_[line];
  news_.wait_for(lock, kIdle, [&] { return closed_ || !queue.empty(); });
  if (queue.empty()) {
    served_.erase(line);
    return {};
  }
  Frame frame = std::move(queue.front());
  queue.pop_front();
  if (frame.last) sends_.erase(line), served_.erase(line);
  return frame;
}

void ServedWire::prepare(std::byte* frame) const { std::memset(frame, 0, kWord); }

void ServedWire::started(Request request, std::byte* frame) {
  std::lock_guard lock(mutex_);
  if (auto found = pending_.find(request); found != pending_.end()) found->second.frame = frame;
}

// One that was given up meanwhile is dropped. Of the next message in this frame the end can be seen anew.
void ServedWire::finish_receive(Request request) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(request);
  if (found == pending_.end()) return;
  const Pending& p = found->second;
  const uint64_t bytes = word(p.frame) - 1;
  copy_bytes(p.data, p.frame + kWord, bytes);
  std::memset(p.frame + kWord + bytes, 0, kWord);
  pending_.erase(found);
}

void ServedWire::finish_send(Request request) {
  std::lock_guard lock(mutex_);
  pending_.erase(request);
}

void ServedWire::fail_line(const Line& line, const std::string& why) {
  std::lock_guard lock(mutex_);
  failures_[line] = why;
}

void ServedWire::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  news_.notify_all();
}

}  // namespace gpucomm
