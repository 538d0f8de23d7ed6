// A device made of this machine's memory and threads: streams are queues with a thread each, events numbers.
// It orders what CUDA orders and nothing more, so what uses devices is tested on it.
#pragma once
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "devices/device.h"
#include "devices/host_graph.h"

namespace gpucomm {

class HostEvent;
class HostStream;
class RetiredStreams;
class SharedMemory;

class HostDevice : public Device {
 public:
  // `deferred`: each piece of work starts after a pause of up to so long, drawn anew each time, so that a
  // wait that is missing shows.
  // Without `shares` there are no handles of its memory, as in some containers; without `opens` it cannot
  // use those of others, as where GPUs have no peer access.
  explicit HostDevice(std::chrono::microseconds deferred = {}, bool shares = true, bool opens = true);
  ~HostDevice() override;

  std::string name() const override { return "host device"; }
  void reach(const Device& other) override;
  std::byte* allocate(size_t bytes) override;
  void release(std::byte* memory) noexcept override;
  std::byte* allocate_pinned(size_t bytes) override {
    count("allocate_pinned");
    return allocate(bytes);
  }
  void release_pinned(std::byte* memory) noexcept override { release(memory); }
  // nullptr is a stream too, as with CUDA.
  Stream make_stream() override;
  void end_stream(Stream stream) noexcept override;
  Event make_event() override;
  void end_event(Event event) noexcept override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;
  uint64_t capture_of(Stream stream) override;
  // As CUDA's graphs; a graph must not outlive its device.
  void begin_capture(Stream stream) { captures_.begin(stream); }
  std::shared_ptr<HostGraph> end_capture(Stream stream) { return captures_.end(stream); }
  void launch(const std::shared_ptr<HostGraph>& graph, Stream stream);

  void copy_all(const std::vector<Copy>& all, Stream stream) override;
  void reduce_all(const std::vector<Fold>& all, Stream stream) override;
  void encode_all(const std::vector<Encoding>& all, Stream stream) override;
  void decode_all(const std::vector<Decoding>& all, bool adds, int divisor, Stream stream) override;
  void recode_all(const std::vector<Recoding>& all, Stream stream) override;
  void scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
             Stream stream) override;
  void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count,
               Stream stream) override;
  void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                  Stream stream) override;
  void add_squares(const Squared& of, std::byte* parts, Stream stream) override;
  std::string refuses(const Codec&, Dtype) const override { return ""; }
  void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) override;
  std::string shares() override { return shares_ ? "" : Device::shares(); }
  Probe probe() override;
  std::string withholds(const std::byte*) override { return withholds_ ? name() + " withholds it" : ""; }
  std::byte* allocate_shared(size_t bytes) override;
  std::string export_memory(const std::byte* memory) override;
  std::byte* open_memory(const std::string& handle) override;
  void close_memory(std::byte* memory) noexcept override { release(memory); }
  Event make_shared_event() override;
  std::string export_event(Event event) override;
  Event open_event(const std::string& handle) override;

  std::unique_ptr<CodingFaults> make_faults() override;
  std::string failure() override;

  // From here on it throws whatever it is asked, as CUDA does after an illegal access.
  void break_down() { broken_ = true; }
  // ... its arrays are such that no other device can be given access to.
  void withhold() { withholds_ = true; }

  // A function of what enqueues by itself, as NCCL does on CUDA's streams; the stream is no null.
  static void call(Stream stream, void (*function)(void*), void* argument);

  // Pieces of work that were enqueued, by kind, for tests: "copy", "reduce", ..., "record", "wait"; and how
  // often "allocate" was called, "allocate_pinned" among it.
  size_t enqueued(const std::string& kind) const;

 private:
  template <class Job>
  void enqueue(const char* kind, Stream stream, Job job);
  HostStream& stream_of(Stream stream);
  void count(const char* kind);  // of what is asked; throws where it has broken down
  void fail_with(const std::string& text);

  std::chrono::microseconds deferred_;
  bool shares_, opens_;
  HostCaptures captures_;
  std::atomic<bool> lost_{false};  // a process whose work this device waited for: nothing runs any more
  std::atomic<bool> broken_{false}, withholds_{false};
  std::mutex probe_mutex_;  // guards the two below
  std::optional<Probe> probe_;
  std::shared_ptr<HostEvent> probe_event_;
  mutable std::mutex mutex_;  // guards the three below
  std::map<const std::byte*, SharedMemory> shared_;
  std::string failure_;
  std::vector<std::pair<std::string, size_t>> enqueued_;
  std::unique_ptr<RetiredStreams> retired_;
  std::unique_ptr<HostStream> default_stream_;  // the first to end: its work uses all the others
};

}  // namespace gpucomm
