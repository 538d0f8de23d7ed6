// A communicator of NCCL, made without blocking: every wait has a deadline of ours, and ends in a sentence.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "devices/device.h"
#include "devices/nccl_library.h"

namespace gpucomm {

// One rank's end of a message.
struct NcclMessage {
  bool sends;
  int peer;
  std::byte* data;  // of a send it is only read
  size_t bytes;
};

// When a wait ends, and how long it then was, for the sentence.
class Deadline {
 public:
  explicit Deadline(double timeout_s)
      : timeout_s_(timeout_s), at_(Clock::now() + clock_time(Seconds(timeout_s))) {}
  bool passed() const { return Clock::now() > at_; }
  double timeout_s() const { return timeout_s_; }

 private:
  double timeout_s_;
  Clock::time_point at_;
};

// One thread uses it, another may abort it. What is called here only begins, the making of it too: until it
// is settled, which on the first messages between two ranks includes that they connect, no other call may be
// made but check(), close() and abort(). Throws timeout, peer_lost or unavailable, with NCCL's words, and is
// closed then for good: later calls throw closed.
class NcclCommunicator {
  static constexpr std::chrono::milliseconds kEnding{500};

 public:
  // All ranks, each on a device, with the id that one of them made, or timeout. `who`: this rank in
  // sentences, where it has another name than its number here. `most_blocks`: of threads, that a call's
  // kernel may have, which keep their place on the device until its peers' come.
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Device> device,
                   const nccl::UniqueId& id, int rank, int world, std::string who = "",
                   int most_blocks = nccl::kUndefined);
  ~NcclCommunicator();  // aborts, unless closed
  NcclCommunicator(const NcclCommunicator&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }

  // All messages at once: none waits for another. The k-th to a peer meets the k-th that it receives.
  void exchange(const std::vector<NcclMessage>& messages, Stream stream);

  // Whether NCCL is done with what was begun; and a wait for that.
  bool settled();
  void settle(const Deadline& deadline);

  // NCCL's own collectives. A mean of floats is a sum of what each rank has multiplied by 1 / world, so its
  // bits may differ from ours. Throws unsupported_type for what NCCL does not reduce.
  void all_reduce(const std::byte* in, std::byte* out, size_t count, Dtype dtype, Op op, Stream stream);
  void reduce(const std::byte* in, std::byte* out, size_t count, Dtype dtype, Op op, int root, Stream stream);
  void reduce_scatter(const std::byte* in, std::byte* out, size_t count_each, Dtype dtype, Op op,
                      Stream stream);
  void broadcast(const std::byte* in, std::byte* out, size_t bytes, int root, Stream stream);
  void all_gather(const std::byte* in, std::byte* out, size_t bytes_each, Stream stream);

  // Until the event is done, watching for NCCL's errors.
  void wait(Event event, const Deadline& deadline);
  // Throws what NCCL has found since.
  void check();

  // A communicator of those who give the same color, by key; null for a negative color. Throws unavailable
  // where the library cannot. Waits.
  std::unique_ptr<NcclCommunicator> split(int color, int key, const Deadline& deadline);

  // After what is enqueued; all ranks. Waits: begin_to_close() does not, and close() goes on with that.
  void close(const Deadline& deadline);
  void begin_to_close();
  // Ends what is under way; from any thread. Waits for that, but no longer than `patience`. `why` is what
  // later calls say.
  void abort(const std::string& why, std::chrono::milliseconds patience = kEnding) noexcept;
  bool closed();

 private:
  using Lock = std::unique_lock<std::mutex>;
  NcclCommunicator(const NcclCommunicator& parent, nccl::Comm comm);
  template <class Enqueue>
  void call(const char* what, Enqueue enqueue);
  void begun(const char* what, int result);
  void check_open() const;
  int state() const;
  std::string who() const;
  void abort_locked(const std::string& why, std::chrono::milliseconds patience = kEnding) noexcept;
  template <class Call>
  int current(Call call) const;
  void end(int (*call)(nccl::Comm), std::chrono::milliseconds patience) noexcept;
  [[noreturn]] void broken(const char* what, int result);
  [[noreturn]] void late(const char* what, const Deadline& deadline);

  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<Device> device_;
  const nccl::Calls& calls_;
  int rank_ = 0, world_ = 1;
  std::string who_;
  std::mutex mutex_;  // guards all below
  nccl::Comm comm_ = nullptr;
  const char* under_way_ = "";  // what was begun
  bool closing_ = false;
  std::string closed_because_;
};

}  // namespace gpucomm
