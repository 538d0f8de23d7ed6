#include "devices/host_device.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "base/copy.h"
#include "base/error.h"
#include "codecs/coding.h"
#include "codecs/floats.h"
#include "devices/apart.h"
#include "devices/host_event.h"
#include "devices/shared_memory.h"
#include "reduce/reduce.h"
#include "reduce/scale.h"

namespace gpucomm {

class HostStream {
 public:
  HostStream(const HostDevice& device, std::chrono::microseconds deferred)
      : device(device), deferred_(deferred), pauses_(std::random_device{}()), thread_([this] { serve(); }) {}
  ~HostStream() {
    retire();
    thread_.join();
  }
  // Ends after what it holds.
  void retire() { add({}); }
  bool ended() const { return ended_; }
  void add(std::function<void()> job) {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    added_.notify_one();
  }

  const HostDevice& device;

 private:
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [&] { return !jobs_.empty(); });
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      if (!job) return void(ended_ = true);
      if (deferred_.count()) std::this_thread::sleep_for(deferred_ * (pauses_() % 1024) / 1024);
      job();
    }
  }

  std::chrono::microseconds deferred_;
  std::minstd_rand pauses_;
  std::mutex mutex_;  // guards jobs_
  std::condition_variable added_;
  std::deque<std::function<void()>> jobs_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

namespace {

// What an event's handle points to.
struct OwnedEvent {
  const HostDevice& device;
  std::shared_ptr<HostEvent> event;
};

OwnedEvent& owned(Event event) { return *static_cast<OwnedEvent*>(event); }

PieceCoding coding_of(const CodedPiece& piece) {
  return {*piece.codec, piece.dtype, piece.count, piece.codec->max_bytes(piece.count, piece.dtype)};
}

void divide(const CodedPiece& piece, std::byte* dense, int divisor) {
  const void* sources[] = {dense};
  if (divisor > 1) reduce(piece.dtype, Op::sum, dense, sources, 1, piece.count, divisor);
}

}  // namespace

HostDevice::HostDevice(std::chrono::microseconds deferred, bool shares, bool opens)
    : deferred_(deferred),
      shares_(shares),
      opens_(opens),
      default_stream_(std::make_unique<HostStream>(*this, deferred)) {}
HostDevice::~HostDevice() = default;

void HostDevice::reach(const Device& other) {
  if (!dynamic_cast<const HostDevice*>(&other))
    fail(ErrorKind::unavailable, name(), " cannot use the memory of ", other.name());
}

std::byte* HostDevice::allocate(size_t bytes) {
  count("allocate");
  constexpr size_t kUnit = 256;
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(kUnit, std::max(kUnit, (bytes + kUnit - 1) / kUnit * kUnit)));
  if (!memory) fail(ErrorKind::unavailable, "no memory for ", bytes, " bytes on the host device");
  return memory;
}

void HostDevice::release(std::byte* memory) noexcept {
  std::unique_lock lock(mutex_);
  if (shared_.erase(memory)) return;
  lock.unlock();
  std::free(memory);
}

Stream HostDevice::make_stream() { return new HostStream(*this, deferred_); }
void HostDevice::end_stream(Stream stream) noexcept {
  captures_.forget(stream);
  std::unique_ptr<HostStream> own(static_cast<HostStream*>(stream));
  own->retire();
  std::lock_guard lock(mutex_);
  std::erase_if(retired_, [](const auto& one) { return one->ended(); });
  retired_.push_back(std::move(own));
}
Event HostDevice::make_event() { return new OwnedEvent{*this, std::make_shared<HostEvent>()}; }
void HostDevice::end_event(Event event) noexcept {
  captures_.forget(event);
  delete &owned(event);
}

std::byte* HostDevice::allocate_shared(size_t bytes) {
  SharedMemory memory(bytes);
  std::byte* const data = memory.data();
  std::lock_guard lock(mutex_);
  shared_.emplace(data, std::move(memory));
  return data;
}
std::byte* HostDevice::open_memory(const std::string& handle) {
  if (!opens_) fail(ErrorKind::unavailable, name(), " cannot open memory of other processes");
  SharedMemory memory(handle);
  std::byte* const data = memory.data();
  std::lock_guard lock(mutex_);
  shared_.emplace(data, std::move(memory));
  return data;
}
std::string HostDevice::export_memory(const std::byte* memory) {
  std::lock_guard lock(mutex_);
  return shared_.at(memory).handle();
}
Device::Probe HostDevice::probe() {
  std::lock_guard lock(probe_mutex_);
  if (!probe_) {
    probe_event_ = HostEvent::make_shared();
    probe_ = {export_memory(allocate_shared(64)), probe_event_->handle()};
  }
  return *probe_;
}
Event HostDevice::make_shared_event() { return new OwnedEvent{*this, HostEvent::make_shared()}; }
std::string HostDevice::export_event(Event event) { return owned(event).event->handle(); }
Event HostDevice::open_event(const std::string& handle) {
  return new OwnedEvent{*this, std::make_shared<HostEvent>(handle)};
}

bool HostDevice::done(Event event) {
  count("done");
  captures_.check(event);
  return owned(event).event->latest().done();
}

HostStream& HostDevice::stream_of(Stream stream) {
  HostStream& found = stream ? *static_cast<HostStream*>(stream) : *default_stream_;
  if (&found.device != this) fail(ErrorKind::invalid_argument, "the stream is one of another host device");
  return found;
}

uint64_t HostDevice::capture_of(Stream stream) {
  stream_of(stream);
  return captures_.of(stream);
}

void HostDevice::record(Event event, Stream stream) {
  count("record");
  if (&owned(event).device != this)
    fail(ErrorKind::unavailable,
         "the event is one of another host device: only its own streams can record it");
  if (captures_.record(event, stream)) return;
  stream_of(stream).add([mark = owned(event).event->record()] { mark.reach(); });
}

void HostDevice::wait(Stream stream, Event event) {
  count("wait");
  if (captures_.wait(stream, event)) return;
  stream_of(stream).add([this, mark = owned(event).event->latest()] {
    if (mark.wait()) return;
    lost_.store(true, std::memory_order_release);
    fail_with(concat("process ", mark.maker(), ", for whose work it waited, has ended"));
  });
}

template <class Job>
void HostDevice::enqueue(const char* kind, Stream stream, Job job) {
  count(kind);
  std::function<void()> guarded = [this, job = std::move(job)] {
    if (lost_.load(std::memory_order_acquire)) return;
    try {
      job();
    } catch (const Error& error) {
      fail_with(error.what());
    }
  };
  if (!captures_.add(stream, guarded)) stream_of(stream).add(std::move(guarded));
}

void HostDevice::launch(const std::shared_ptr<HostGraph>& graph, Stream stream) {
  enqueue("launch", stream, [graph] { graph->run(); });
}

void HostDevice::call(Stream stream, void (*function)(void*), void* argument) {
  static_cast<HostStream*>(stream)->add([=] { function(argument); });
}

void HostDevice::copy_all(const std::vector<Copy>& all, Stream stream) {
  check_apart(all);
  enqueue("copy", stream, [=] {
    for (const Copy& copy : all) std::memmove(copy.to, copy.from, copy.bytes);
  });
}

void HostDevice::reduce_all(const std::vector<Fold>& all, Stream stream) {
  check_apart(all);
  enqueue("reduce", stream, [=] {
    for (const Fold& fold : all) {
      const std::vector<const void*> sources(fold.sources.begin(), fold.sources.end());
      std::byte* const first = fold.destinations[0];
      gpucomm::reduce(fold.dtype, fold.op, first, sources.data(), static_cast<int>(sources.size()),
                      fold.count, fold.divisor);
      for (size_t i = 1; i < fold.destinations.size(); ++i)
        copy_bytes(fold.destinations[i], first, fold.count * size_of(fold.dtype));
    }
  });
}

void HostDevice::encode_all(const std::vector<Encoding>& all, Stream stream) {
  check_apart(all);
  enqueue("encode", stream, [=] {
    for (const auto& [piece, dense, slot] : all) coding_of(piece).encode(dense, slot);
  });
}

void HostDevice::decode_all(const std::vector<Decoding>& all, bool adds, int divisor, Stream stream) {
  check_apart(all);
  enqueue("decode", stream, [=] {
    for (const auto& [piece, slot, dense] : all) {
      coding_of(piece).decode(slot, dense, adds);
      divide(piece, dense, divisor);
    }
  });
}

void HostDevice::recode_all(const std::vector<Recoding>& all, Stream stream) {
  check_apart(all);
  enqueue("recode", stream, [=] {
    for (const auto& [piece, from, own, to] : all) {
      if (coding_of(piece).recode(from, own, to)) continue;
      std::vector<std::byte> sum(own, own + piece.count * size_of(piece.dtype));
      coding_of(piece).decode(from, sum.data(), true);
      coding_of(piece).encode(sum.data(), to);
    }
  });
}

void HostDevice::scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
                       Stream stream) {
  enqueue("scale", stream, [=] { gpucomm::scale(dtype, to, from, count, factor); });
}

void HostDevice::convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count,
                         Stream stream) {
  enqueue("convert", stream, [=] { gpucomm::convert(from, in, to, out, count); });
}

void HostDevice::difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                            Stream stream) {
  enqueue("difference", stream, [=] { gpucomm::difference(dtype, dense, error, times, count); });
}

void HostDevice::add_squares(const Squared& of, std::byte* parts, Stream stream) {
  enqueue("add_squares", stream, [=] { gpucomm::add_squares(of, *reinterpret_cast<NormSums*>(parts)); });
}

void HostDevice::add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) {
  enqueue("add_coded", stream, [=] { coding_of(piece).add(from, into); });
}

void HostDevice::fail_with(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = text;
}

std::string HostDevice::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

void HostDevice::count(const char* kind) {
  if (broken_) fail(ErrorKind::unavailable, name(), ": ", kind, " failed: it has broken down");
  std::lock_guard lock(mutex_);
  for (auto& [name, times] : enqueued_)
    if (name == kind) return void(++times);
  enqueued_.emplace_back(kind, 1);
}

size_t HostDevice::enqueued(const std::string& kind) const {
  std::lock_guard lock(mutex_);
  for (const auto& [name, times] : enqueued_)
    if (name == kind) return times;
  return 0;
}

}  // namespace gpucomm
