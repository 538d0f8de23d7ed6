// Memory and events of a CUDA device that other processes open.
#include <cstring>

#include "cuda/check.h"
#include "cuda/cuda_device.h"

namespace gpucomm::cuda {
namespace {

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

}  // namespace

std::string CudaDevice::shares() {
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

Device::Probe CudaDevice::probe() {
  if (const std::string why = shares(); !why.empty()) fail(ErrorKind::unavailable, why);
  return {export_memory(probe_), export_event(probe_event_)};
}

std::string CudaDevice::export_memory(const std::byte* memory) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  cudaIpcMemHandle_t handle;
  GPUCOMM_CUDA(cudaIpcGetMemHandle(&handle, const_cast<std::byte*>(memory)));
  return to_text(handle);
}

std::byte* CudaDevice::open_memory(const std::string& handle) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  void* memory = nullptr;
  GPUCOMM_CUDA(
      cudaIpcOpenMemHandle(&memory, from_text<cudaIpcMemHandle_t>(handle), cudaIpcMemLazyEnablePeerAccess));
  return static_cast<std::byte*>(memory);
}

void CudaDevice::close_memory(std::byte* memory) noexcept {
  releases_.run([=, this] { quietly(context_, [&] { return cudaIpcCloseMemHandle(memory); }); });
}

Event CudaDevice::make_shared_event() {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  return new_event(cudaEventInterprocess);
}

std::string CudaDevice::export_event(Event event) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  cudaIpcEventHandle_t handle;
  GPUCOMM_CUDA(cudaIpcGetEventHandle(&handle, as_event(event)));
  return to_text(handle);
}

Event CudaDevice::open_event(const std::string& handle) {
  const Context::Scope scope(context_);
  const OutsideCapture outside;
  cudaEvent_t event = nullptr;
  GPUCOMM_CUDA(cudaIpcOpenEventHandle(&event, from_text<cudaIpcEventHandle_t>(handle)));
  return event;
}

std::string CudaDevice::probe_sharing() {
  try {
    probe_event_ = as_event(make_shared_event());
    export_memory(probe_), export_event(probe_event_);
  } catch (const Error& error) {
    return unshared(error);
  }
  return "";
}

std::string CudaDevice::unshared(const Error& error) const {
  return concat(name(), " shares no memory with other processes: ", error.what());
}

}  // namespace gpucomm::cuda
