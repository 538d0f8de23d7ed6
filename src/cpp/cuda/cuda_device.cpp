#include "cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <optional>

#include "base/error.h"
#include "cuda/available.h"
#include "cuda/check.h"
#include "cuda/coding.h"
#include "cuda/context.h"
#include "cuda/reduce.h"
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

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index), context_(index) {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    status_.emplace();
    never_ = new_event();
  }

  ~CudaDevice() override {
    quietly(context_, [&] {
      status_.reset();
      return cudaEventDestroy(never_);
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
    if (!can) fail(ErrorKind::unavailable, name(), " cannot use the memory of ", other.name());
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer->index_, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      check(error, "cudaDeviceEnablePeerAccess");
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

  void copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    const Context::Scope scope(context_);
    GPUCOMM_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)));
  }

  void reduce(const Fold& fold, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::reduce(fold, index_, as_stream(stream));
  }

  std::string refuses(const Codec& codec, Dtype dtype) const override { return cuda::refuses(codec, dtype); }

  void encode(const CodedPiece& piece, const std::byte* dense, std::byte* slot, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::encode(piece, dense, slot, status_->device(), as_stream(stream));
  }

  void decode(const CodedPiece& piece, const std::byte* slot, std::byte* dense, bool adds, int divisor,
              Stream stream) override {
    const Context::Scope scope(context_);
    cuda::decode(piece, slot, dense, adds, divisor, status_->device(), as_stream(stream));
  }

  void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) override {
    const Context::Scope scope(context_);
    cuda::add_coded(piece, from, into, status_->device(), as_stream(stream));
  }

  std::string failure() override {
    if (const unsigned long long status = status_->value()) return describe_status(status);
    try {
      const Context::Scope scope(context_);
      const OutsideCapture outside;
      const cudaError_t error = cudaEventQuery(never_);  // done, unless an earlier fault comes back
      return error == cudaSuccess ? "" : sentence(error, "earlier work");
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  static cudaEvent_t new_event() {
    cudaEvent_t event = nullptr;
    GPUCOMM_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }

  [[noreturn]] void out_of_memory(size_t bytes) const {
    cudaGetLastError();
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
    fail(ErrorKind::unavailable, name(), ": no memory for ", bytes, " bytes: ", free, " of ", total,
         " bytes are free");
  }

  int index_;
  Context context_;
  std::optional<StatusWord> status_;
  cudaEvent_t never_ = nullptr;  // recorded
};

}  // namespace

std::shared_ptr<Device> open_device(int index) {
  check_device(index);
  return std::make_shared<CudaDevice>(index);
}

}  // namespace gpucomm::cuda
