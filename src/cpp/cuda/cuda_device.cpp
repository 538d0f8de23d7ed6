#include "cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "cuda/available.h"
#include "cuda/check.h"
#include "cuda/coding.h"
#include "cuda/context.h"
#include "cuda/reduce.h"
#include "cuda/residency.h"
#include "cuda/status_word.h"

namespace gpucomm::cuda {
namespace {

// Named, for both handles are a void*.
cudaStream_t as_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(Event event) { return static_cast<cudaEvent_t>(event); }

// What a process that ends, or a device that is lost, cannot give back is gone anyway.
template <class Action>
void quietly(const Context& context, Action action) noexcept {
  try {
    const Context::Scope scope(context);
    const OutsideCapture outside;
    if (action() != cudaSuccess) cudaGetLastError();
  } catch (const Error&) {
  }
}

// Handles are bytes.
template <class Handle>
std::string to_text(const Handle& handle) {
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}
template <class Handle>
Handle from_text(const std::string& text) {
  Handle handle;
  GPUCOMM_CHECK(text.size() == sizeof handle);
  std::memcpy(&handle, text.data(), sizeof handle);
  return handle;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index), context_(index) {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    load_kernels();
    status_.emplace();
    pulse_ = new_event();
    GPUCOMM_CUDA(cudaStreamCreateWithFlags(&pulse_stream_, cudaStreamNonBlocking));
  }

  ~CudaDevice() override {
    quietly(context_, [&] {
      status_.reset();
      cudaStreamDestroy(pulse_stream_), cudaEventDestroy(pulse_);
      if (probe_event_) cudaEventDestroy(probe_event_);
      return cudaFree(probe_);
    });
  }

  std::string name() const override { return concat("cuda:", index_); }

  void reach(const Device& other) override {
    const auto* peer = dynamic_cast<const CudaDevice*>(&other);
    if (peer && peer->index_ == index_) return;
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    int can = 0;
    if (peer) GPUCOMM_CUDA(cudaDeviceCanAccessPeer(&can, index_, peer->index_));
    if (!can)
      fail(ErrorKind::unavailable, name(), " cannot use the memory of ", other.name(),
           "; GPUCOMM_DEVICE_TRANSPORT=staged takes arrays through host memory");
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer->index_, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      check(error, "cudaDeviceEnablePeerAccess");
  }

  std::string withholds(const std::byte* array) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    if (of_malloc(array)) return "";
    return concat("memory of ", name(),
                  " that is not cudaMalloc's other GPUs cannot use (torch's expandable ",
                  "segments, a pool of CUDA's); GPUCOMM_DEVICE_TRANSPORT=staged goes through host memory");
  }

  void with_current(const std::function<void()>& call) override {
    const Context::Scope scope(context_);
    call();
  }

  std::byte* allocate(size_t bytes) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) out_of_memory(bytes);
    check(error, "cudaMalloc");
    return static_cast<std::byte*>(memory);
  }

  void release(std::byte* memory) noexcept override {
    quietly(context_, [&] { return cudaFree(memory); });
  }

  // With unified addressing a kernel reads it where it is.
  std::byte* allocate_pinned(size_t bytes) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail(ErrorKind::unavailable, name(), ": no ", bytes, " bytes of host memory could be page-locked");
    }
    check(error, "cudaHostAlloc");
    return static_cast<std::byte*>(memory);
  }

  void release_pinned(std::byte* memory) noexcept override {
    quietly(context_, [&] { return cudaFreeHost(memory); });
  }

  Stream make_stream() override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    cudaStream_t stream = nullptr;
    GPUCOMM_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }

  void end_stream(Stream stream) noexcept override {
    quietly(context_, [&] { return cudaStreamDestroy(as_stream(stream)); });
  }

  Event make_event() override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    return new_event();
  }

  void end_event(Event event) noexcept override {
    quietly(context_, [&] { return cudaEventDestroy(as_event(event)); });
  }

  void record(Event event, Stream stream) override {
    const Context::Scope scope(context_);
    GPUCOMM_CUDA(cudaEventRecord(as_event(event), as_stream(stream)));
  }

  void wait(Stream stream, Event event) override {
    const Context::Scope scope(context_);
    GPUCOMM_CUDA(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
  }

  bool done(Event event) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    const cudaError_t state = cudaEventQuery(as_event(event));
    if (state != cudaErrorNotReady) check(state, "cudaEventQuery");
    if (state == cudaErrorNotReady) cudaGetLastError();  // not an error, but kept as one
    return state == cudaSuccess;
  }

  uint64_t capture_of(Stream stream) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    if (!context_.owns(as_stream(stream)))
      fail(ErrorKind::invalid_argument, "the stream is not one of ", name(), ", on which the array is");
    auto status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    const cudaError_t error = cudaStreamGetCaptureInfo(as_stream(stream), &status, &id);
    if (error == cudaErrorStreamCaptureImplicit) {
      cudaGetLastError();
      fail(ErrorKind::invalid_argument, name(), ": the stream is CUDA's default stream, which CUDA refuses ",
           "while a stream that waits for it is captured into a graph: pass stream=");
    }
    check(error, "cudaStreamGetCaptureInfo");
    if (status == cudaStreamCaptureStatusInvalidated)
      fail(ErrorKind::invalid_argument, name(),
           ": the stream is being captured into a graph, and the capture has failed: end it");
    return status == cudaStreamCaptureStatusNone ? 0 : id;
  }

  void copy_all(const std::vector<Copy>& all, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::copy(all, as_stream(stream));
  }

  void reduce_all(const std::vector<Fold>& all, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::reduce(all, as_stream(stream));
  }

  void scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
             Stream stream) override {
    const Context::Scope scope(context_);
    cuda::scale(dtype, to, from, count, factor, as_stream(stream));
  }

  void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count,
               Stream stream) override {
    const Context::Scope scope(context_);
    cuda::convert(from, in, to, out, count, as_stream(stream));
  }

  void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                  Stream stream) override {
    const Context::Scope scope(context_);
    cuda::difference(dtype, dense, error, times, count, as_stream(stream));
  }

  void add_squares(const Squared& of, std::byte* parts, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::add_squares(of, parts, as_stream(stream));
  }

  std::string refuses(const Codec& codec, Dtype dtype) const override { return cuda::refuses(codec, dtype); }

  void encode_all(const std::vector<Encoding>& all, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::encode(all, status_->device(), as_stream(stream));
  }

  void decode_all(const std::vector<Decoding>& all, bool adds, int divisor, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::decode(all, adds, divisor, status_->device(), as_stream(stream));
  }

  void recode_all(const std::vector<Recoding>& all, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::recode(all, status_->device(), as_stream(stream));
  }

  void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::add_coded(piece, from, into, status_->device(), as_stream(stream));
  }

  // That there is no memory is not kept: there may be some next time.
  std::string shares() override {
    constexpr size_t kBlock = 2 << 20;
    std::lock_guard lock(probe_mutex_);
    try {
      if (!probe_) probe_ = allocate_shared(kBlock);
    } catch (const Error& error) {
      return unshared(error);
    }
    if (!cannot_share_) cannot_share_ = probe_sharing();
    return *cannot_share_;
  }

  Probe probe() override {
    if (const std::string why = shares(); !why.empty()) fail(ErrorKind::unavailable, why);
    return {export_memory(probe_), export_event(probe_event_)};
  }

  // Memory of cudaMalloc, whose handles begin at its blocks: callers take whole ones, of 2 MiB.
  std::byte* allocate_shared(size_t bytes) override { return allocate(bytes); }

  std::string export_memory(const std::byte* memory) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    cudaIpcMemHandle_t handle;
    GPUCOMM_CUDA(cudaIpcGetMemHandle(&handle, const_cast<std::byte*>(memory)));
    return to_text(handle);
  }

  std::byte* open_memory(const std::string& handle) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    void* memory = nullptr;
    GPUCOMM_CUDA(
        cudaIpcOpenMemHandle(&memory, from_text<cudaIpcMemHandle_t>(handle), cudaIpcMemLazyEnablePeerAccess));
    return static_cast<std::byte*>(memory);
  }

  void close_memory(std::byte* memory) noexcept override {
    quietly(context_, [&] { return cudaIpcCloseMemHandle(memory); });
  }

  Event make_shared_event() override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    return new_event(cudaEventInterprocess);
  }

  std::string export_event(Event event) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    cudaIpcEventHandle_t handle;
    GPUCOMM_CUDA(cudaIpcGetEventHandle(&handle, as_event(event)));
    return to_text(handle);
  }

  Event open_event(const std::string& handle) override {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    cudaEvent_t event = nullptr;
    GPUCOMM_CUDA(cudaIpcOpenEventHandle(&event, from_text<cudaIpcEventHandle_t>(handle)));
    return event;
  }

  std::string failure() override {
    if (const unsigned long long status = status_->value()) return describe_status(status);
    try {
      const Context::Scope scope(context_);
      const OutsideCapture outside;
      const cudaError_t error = beat();
      return error == cudaSuccess ? "" : sentence(error, "earlier work");
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  static cudaEvent_t new_event(unsigned flags = 0) {
    cudaEvent_t event = nullptr;
    GPUCOMM_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | flags));
    return event;
  }

  // After a fault CUDA refuses all further work, so there is some each time; what was there before is asked
  // for first, for it would not end. On a stream of its own, which nothing holds up and no capture has.
  cudaError_t beat() {
    const cudaError_t before = cudaEventQuery(pulse_);
    if (before == cudaErrorNotReady) cudaGetLastError();  // not an error, but kept as one
    if (before != cudaSuccess && before != cudaErrorNotReady) return before;
    return cudaEventRecord(pulse_, pulse_stream_);
  }

  // Handles, for a process cannot open its own: whether another one can shows when it does. What they are of
  // stays: giving memory back may wait for all of the device's work, that of other ranks too.
  std::string probe_sharing() {
    try {
      probe_event_ = as_event(make_shared_event());
      export_memory(probe_), export_event(probe_event_);
    } catch (const Error& error) {
      return unshared(error);
    }
    return "";
  }

  std::string unshared(const Error& error) const {
    return concat(name(), " shares no memory with other processes: ", error.what());
  }

  [[noreturn]] void out_of_memory(size_t bytes) const {
    cudaGetLastError();
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
    fail(ErrorKind::unavailable, name(), ": no memory for ", bytes, " bytes: ", free, " of ", total,
         " bytes are free (torch.cuda.empty_cache() frees what torch keeps)");
  }

  int index_;
  Context context_;
  std::optional<StatusWord> status_;
  cudaEvent_t pulse_ = nullptr;
  cudaStream_t pulse_stream_ = nullptr;
  std::mutex probe_mutex_;  // guards all below
  std::byte* probe_ = nullptr;
  cudaEvent_t probe_event_ = nullptr;
  std::optional<std::string> cannot_share_;
};

}  // namespace

std::shared_ptr<Device> open_device(int index) {
  check_device(index);
  return std::make_shared<CudaDevice>(index);
}

}  // namespace gpucomm::cuda
