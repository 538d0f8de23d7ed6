#include "cuda/cuda_device.h"

#include "cuda/available.h"
#include "cuda/check.h"
#include "cuda/residency.h"

namespace gpucomm::cuda {

CudaDevice::CudaDevice(int index) : index_(index), context_(index) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  load_kernels();
  faults_.emplace(context_, releases_);
  pulse_ = new_event();
  GPUCOMM_CUDA(cudaStreamCreateWithFlags(&pulse_stream_, cudaStreamNonBlocking));
}

CudaDevice::~CudaDevice() {
  quietly(context_, [&] {
    cudaStreamDestroy(pulse_stream_), cudaEventDestroy(pulse_);
    if (probe_event_) cudaEventDestroy(probe_event_);
    return cudaFree(probe_);
  });
}

void CudaDevice::reach(const Device& other) {
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

std::string CudaDevice::withholds(const std::byte* array) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  if (of_malloc(array)) return "";
  return concat("memory of ", name(), " that is not cudaMalloc's other GPUs cannot use (torch's expandable ",
                "segments, a pool of CUDA's); GPUCOMM_DEVICE_TRANSPORT=staged goes through host memory");
}

void CudaDevice::with_current(const std::function<void()>& call) {
  const Context::Scope scope(context_);
  call();
}

std::byte* CudaDevice::allocate(size_t bytes) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation && releases_.at_once()) {  // what was put off is free now
    cudaGetLastError();
    error = cudaMalloc(&memory, bytes);
  }
  if (error == cudaErrorMemoryAllocation) out_of_memory(bytes);
  check(error, "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

void CudaDevice::release(std::byte* memory) noexcept {
  releases_.run([=, this] { quietly(context_, [&] { return cudaFree(memory); }); });
}

std::byte* CudaDevice::allocate_pinned(size_t bytes) {
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

void CudaDevice::release_pinned(std::byte* memory) noexcept {
  releases_.run([=, this] { quietly(context_, [&] { return cudaFreeHost(memory); }); });
}

Stream CudaDevice::make_stream() {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  cudaStream_t stream = nullptr;
  GPUCOMM_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void CudaDevice::end_stream(Stream stream) noexcept {
  quietly(context_, [&] { return cudaStreamDestroy(as_stream(stream)); });
}

Event CudaDevice::make_event() {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  return new_event();
}

void CudaDevice::end_event(Event event) noexcept {
  quietly(context_, [&] { return cudaEventDestroy(as_event(event)); });
}

void CudaDevice::record(Event event, Stream stream) {
  const Context::Scope scope(context_);
  GPUCOMM_CUDA(cudaEventRecord(as_event(event), as_stream(stream)));
}

void CudaDevice::wait(Stream stream, Event event) {
  const Context::Scope scope(context_);
  GPUCOMM_CUDA(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}

bool CudaDevice::done(Event event) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  const cudaError_t state = cudaEventQuery(as_event(event));
  if (state != cudaErrorNotReady) check(state, "cudaEventQuery");
  if (state == cudaErrorNotReady) cudaGetLastError();  // not an error, but kept as one
  return state == cudaSuccess;
}

uint64_t CudaDevice::capture_of(Stream stream) {
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

std::unique_ptr<CodingFaults> CudaDevice::make_faults() {
  return std::make_unique<CudaFaults>(context_, releases_);
}

std::string CudaDevice::failure() {
  if (std::string text = faults_->text(); !text.empty()) return text;
  try {
    const Context::Scope scope(context_);
    const OutsideCapture outside;
    const cudaError_t error = beat();
    return error == cudaSuccess ? "" : describe(error);
  } catch (const Error& error) {
    return error.what();
  }
}

cudaEvent_t CudaDevice::new_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  GPUCOMM_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | flags));
  return event;
}

cudaError_t CudaDevice::beat() {
  const cudaError_t before = cudaEventQuery(pulse_);
  if (before == cudaErrorNotReady) cudaGetLastError();  // not an error, but kept as one
  if (before != cudaSuccess && before != cudaErrorNotReady) return before;
  return cudaEventRecord(pulse_, pulse_stream_);
}

[[noreturn]] void CudaDevice::out_of_memory(size_t bytes) const {
  cudaGetLastError();
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
  fail(ErrorKind::unavailable, name(), ": no memory for ", bytes, " bytes: ", free, " of ", total,
       " bytes are free (torch.cuda.empty_cache() frees what torch keeps)");
}

std::shared_ptr<Device> open_device(int index) {
  check_device(index);
  return std::make_shared<CudaDevice>(index);
}

}  // namespace gpucomm::cuda
