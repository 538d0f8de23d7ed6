// A GPU as a Device: its primary context, so that memory and streams of any CUDA library of the process will
// do.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda/coding.h"
#include "cuda/context.h"
#include "cuda/faults.h"
#include "devices/device.h"
#include "devices/releases.h"

namespace gpucomm::cuda {

// Named, for both handles are a void*.
inline cudaStream_t as_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }
inline cudaEvent_t as_event(Event event) { return static_cast<cudaEvent_t>(event); }

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  std::string name() const override { return concat("cuda:", index_); }
  void reach(const Device& other) override;
  std::string withholds(const std::byte* array) override;
  void with_current(const std::function<void()>& call) override;
  std::byte* allocate(size_t bytes) override;
  void release(std::byte* memory) noexcept override;
  void put_releases_off(std::function<bool()> ended) override { releases_.put_off(std::move(ended)); }
  bool releases_at_once() override { return releases_.at_once(); }
  // With unified addressing a kernel reads it where it is.
  std::byte* allocate_pinned(size_t bytes) override;
  void release_pinned(std::byte* memory) noexcept override;
  Stream make_stream() override;
  void end_stream(Stream stream) noexcept override;
  Event make_event() override;
  void end_event(Event event) noexcept override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;
  uint64_t capture_of(Stream stream) override;
  void copy_all(const std::vector<Copy>& all, Stream stream) override;
  void reduce_all(const std::vector<Fold>& all, Stream stream) override;
  void scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
             Stream stream) override;
  void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count,
               Stream stream) override;
  void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                  Stream stream) override;
  void add_squares(const Squared& of, std::byte* parts, Stream stream) override;
  std::string refuses(const Codec& codec, Dtype dtype) const override;
  void encode_all(const std::vector<Encoding>& all, Stream stream) override;
  void decode_all(const std::vector<Decoding>& all, bool adds, int divisor, Stream stream) override;
  void recode_all(const std::vector<Recoding>& all, Stream stream) override;
  void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) override;
  // That there is no memory is not kept: there may be some next time.
  std::string shares() override;
  Probe probe() override;
  // Memory of cudaMalloc, whose handles begin at its blocks: callers take whole ones, of 2 MiB.
  std::byte* allocate_shared(size_t bytes) override { return allocate(bytes); }
  std::string export_memory(const std::byte* memory) override;
  std::byte* open_memory(const std::string& handle) override;
  void close_memory(std::byte* memory) noexcept override;
  Event make_shared_event() override;
  std::string export_event(Event event) override;
  Event open_event(const std::string& handle) override;
  std::unique_ptr<CodingFaults> make_faults() override;
  std::string failure() override;

 private:
  static cudaEvent_t new_event(unsigned flags = 0);
  // After a fault CUDA refuses all further work, so there is some each time; what was there before is asked
  // for first, for it would not end. On a stream of its own, which nothing holds up and no capture has.
  cudaError_t beat();
  // Handles, for a process cannot open its own: whether another one can shows when it does. What they are of
  // stays: giving memory back may wait for all of the device's work, that of other ranks too.
  std::string probe_sharing();
  std::string unshared(const Error& error) const;
  [[noreturn]] void out_of_memory(size_t bytes) const;

  int index_;
  Context context_;
  Releases releases_;
  std::optional<CudaFaults> faults_;  // of coding that tells nobody else
  cudaEvent_t pulse_ = nullptr;
  cudaStream_t pulse_stream_ = nullptr;
  std::mutex probe_mutex_;  // guards all below
  std::byte* probe_ = nullptr;
  cudaEvent_t probe_event_ = nullptr;
  std::optional<std::string> cannot_share_;
};

// Throws unavailable: no driver, one too old, no GPU, no such index.
std::shared_ptr<Device> open_device(int index);

}  // namespace gpucomm::cuda
