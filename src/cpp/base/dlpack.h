// The DLPack 1.x C ABI, restated: only its structs, so that nothing is vendored or linked.
// Source: github.com/dmlc/dlpack, include/dlpack/dlpack.h.
#pragma once
#include <cstdint>

namespace gpucomm::dlpack {

struct Version {
  uint32_t major, minor;
};
struct Device {
  int32_t type, id;
};
inline constexpr int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kExtension = 12;
inline constexpr uintptr_t kStreamPerThread = 2;  // a stream's number: CUDA's default one of each thread
struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Managed {  // capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {  // capsule "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};
inline constexpr uint64_t kReadOnly = 1, kIsCopied = 2;
// type(x).__dlpack_c_exchange_api__, capsule "dlpack_exchange_api", DLPack >= 1.2.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor*, ManagedVersioned**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from_object)(void*, ManagedVersioned**);
  int (*managed_to_object)(ManagedVersioned*, void**);
  int (*tensor_from_object)(void*, Tensor*);  // borrows: no capsule, no stream synchronisation
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
};

}  // namespace gpucomm::dlpack
