#include "cuda/available.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "base/error.h"
#include "cuda/check.h"

namespace gpucomm::cuda {

int runtime_version() {
  int version = 0;
  GPUCOMM_CUDA(cudaRuntimeGetVersion(&version));
  return version;
}

int driver_version() {
  int version = 0;
  GPUCOMM_CUDA(cudaDriverGetVersion(&version));
  return version;
}

static std::string dotted(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

// Without a driver CUDA says that the driver is too old.
static std::string of_driver() {
  const int driver = driver_version(), runtime = runtime_version();
  if (driver == 0) return "no NVIDIA driver is installed here (libcuda.so.1 was not found, or does not load)";
  return concat("the NVIDIA driver is too old: it is for CUDA ", dotted(driver),
                ", gpucomm was built with CUDA ", dotted(runtime),
                "; update the driver, or build with an older CUDA");
}

static std::string no_device() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string hidden = visible ? concat(" (CUDA_VISIBLE_DEVICES is '", visible, "')") : "";
  return concat("the NVIDIA driver, for CUDA ", dotted(driver_version()), ", sees no GPU", hidden);
}

static std::string count_devices(int& count) {
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count ? "" : no_device();
  cudaGetLastError();
  count = 0;
  if (error == cudaErrorInsufficientDriver) return of_driver();
  if (error == cudaErrorNoDevice) return no_device();
  return sentence(error, "cudaGetDeviceCount");
}

std::string unavailable() {
  int count = 0;
  return count_devices(count);
}

int device_count() {
  int count = 0;
  const std::string why = count_devices(count);
  if (!why.empty()) fail(ErrorKind::unavailable, "CUDA cannot be used: ", why);
  return count;
}

void check_device(int index) {
  const int count = device_count();
  if (index < 0 || index >= count)
    fail(ErrorKind::unavailable, "there is no device cuda:", index, ": this process sees ", count,
         count == 1 ? " GPU" : " GPUs", ", counted from 0");
}

std::string device_name(int index) {
  check_device(index);
  cudaDeviceProp properties;
  GPUCOMM_CUDA(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

}  // namespace gpucomm::cuda
