// NCCL's C types, declared by ourselves: gpucomm is built without its header. The values are part of NCCL's
// ABI, the same since 2.18; devices/guard/nccl_values.cpp compares them with a header where there is one.
#pragma once
#include <cstddef>
#include <limits>

namespace gpucomm::nccl {

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

// Passed by value.
struct UniqueId {
  char internal[128];
};

using Comm = struct CommHandle*;  // opaque
using CudaStream = void*;         // cudaStream_t

inline constexpr int kUndefined = std::numeric_limits<int>::min();  // NCCL_CONFIG_UNDEF_INT

// ncclConfig_t as it was in 2.18, which later releases take by its size and version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cgaClusterSize = kUndefined;
  int minCTAs = kUndefined;
  int maxCTAs = kUndefined;
  const char* netName = nullptr;
  int splitShare = kUndefined;
};

inline constexpr int kNoColor = -1;  // NCCL_SPLIT_NOCOLOR
// Before, threads of NCCL go on to use the place where ncclCommInitRankConfig puts the communicator.
inline constexpr int kOldestVersion = 21800;

// The calls by their names without "nccl". Those below the line are null where the library lacks them.
struct Calls {
  int (*GetVersion)(int*);
  int (*GetUniqueId)(UniqueId*);
  int (*CommInitRankConfig)(Comm*, int world, UniqueId, int rank, Config*);
  int (*CommFinalize)(Comm);
  int (*CommDestroy)(Comm);
  int (*CommAbort)(Comm);
  int (*CommGetAsyncError)(Comm, int*);
  const char* (*GetErrorString)(int);
  int (*CommCount)(Comm, int*);
  int (*CommUserRank)(Comm, int*);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*Send)(const void*, size_t count, int type, int peer, Comm, CudaStream);
  int (*Recv)(void*, size_t count, int type, int peer, Comm, CudaStream);
  int (*AllReduce)(const void*, void*, size_t count, int type, int op, Comm, CudaStream);
  int (*Broadcast)(const void*, void*, size_t count, int type, int root, Comm, CudaStream);
  int (*Reduce)(const void*, void*, size_t count, int type, int op, int root, Comm, CudaStream);
  int (*AllGather)(const void*, void*, size_t count_each, int type, Comm, CudaStream);
  int (*ReduceScatter)(const void*, void*, size_t count_each, int type, int op, Comm, CudaStream);
  // ------------------------------------------------------------------------------------------------
  const char* (*GetLastError)(Comm);                           // 2.13
  int (*CommSplit)(Comm, int color, int key, Comm*, Config*);  // 2.18
};

}  // namespace gpucomm::nccl
