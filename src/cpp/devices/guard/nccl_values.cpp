// Compiled only where NCCL's header is found: our own declarations must agree with it.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "devices/nccl_types.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)  // older ones are refused at run time

namespace ours = gpucomm::nccl;

static_assert(sizeof(ncclUniqueId) == sizeof(ours::UniqueId) &&
              alignof(ncclUniqueId) == alignof(ours::UniqueId));
static_assert(sizeof(ncclComm_t) == sizeof(ours::Comm) && sizeof(cudaStream_t) == sizeof(ours::CudaStream));
static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
              sizeof(ncclRedOp_t) == sizeof(int));

static_assert(static_cast<int>(ncclSuccess) == ours::kSuccess &&
              static_cast<int>(ncclUnhandledCudaError) == ours::kUnhandledCudaError &&
              static_cast<int>(ncclSystemError) == ours::kSystemError &&
              static_cast<int>(ncclInternalError) == ours::kInternalError &&
              static_cast<int>(ncclInvalidArgument) == ours::kInvalidArgument &&
              static_cast<int>(ncclInvalidUsage) == ours::kInvalidUsage &&
              static_cast<int>(ncclRemoteError) == ours::kRemoteError &&
              static_cast<int>(ncclInProgress) == ours::kInProgress);
static_assert(static_cast<int>(ncclInt8) == ours::kInt8 && static_cast<int>(ncclUint8) == ours::kUint8 &&
              static_cast<int>(ncclInt32) == ours::kInt32 && static_cast<int>(ncclUint32) == ours::kUint32 &&
              static_cast<int>(ncclInt64) == ours::kInt64 && static_cast<int>(ncclUint64) == ours::kUint64 &&
              static_cast<int>(ncclFloat16) == ours::kFloat16 &&
              static_cast<int>(ncclFloat32) == ours::kFloat32 &&
              static_cast<int>(ncclFloat64) == ours::kFloat64 &&
              static_cast<int>(ncclBfloat16) == ours::kBfloat16);
static_assert(static_cast<int>(ncclSum) == ours::kSum && static_cast<int>(ncclProd) == ours::kProd &&
              static_cast<int>(ncclMax) == ours::kMax && static_cast<int>(ncclMin) == ours::kMin &&
              static_cast<int>(ncclAvg) == ours::kAvg);

static_assert(offsetof(ncclConfig_t, size) == offsetof(ours::Config, size) &&
              offsetof(ncclConfig_t, magic) == offsetof(ours::Config, magic) &&
              offsetof(ncclConfig_t, version) == offsetof(ours::Config, version) &&
              offsetof(ncclConfig_t, blocking) == offsetof(ours::Config, blocking) &&
              offsetof(ncclConfig_t, cgaClusterSize) == offsetof(ours::Config, cgaClusterSize) &&
              offsetof(ncclConfig_t, minCTAs) == offsetof(ours::Config, minCTAs) &&
              offsetof(ncclConfig_t, maxCTAs) == offsetof(ours::Config, maxCTAs) &&
              offsetof(ncclConfig_t, netName) == offsetof(ours::Config, netName) &&
              offsetof(ncclConfig_t, splitShare) == offsetof(ours::Config, splitShare) &&
              sizeof(ncclConfig_t) >= sizeof(ours::Config));
static_assert(ours::Config{}.magic == ncclConfig_t(NCCL_CONFIG_INITIALIZER).magic);
static_assert(ours::Config{}.version == NCCL_VERSION(2, 18, 0) && ours::kUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(NCCL_VERSION(2, 18, 0) == ours::kOldestVersion);
#ifdef NCCL_SPLIT_NOCOLOR
static_assert(NCCL_SPLIT_NOCOLOR == ours::kNoColor);
#endif

// The prototypes: as many arguments, each of the same size and class. Enums we take as the ints that they
// are.
template <class Theirs, class Ours>
constexpr bool alike_value =
    sizeof(Theirs) == sizeof(Ours) && std::is_pointer_v<Theirs> == std::is_pointer_v<Ours>;
template <class A, class... As, class B, class... Bs>
constexpr bool alike(A (*)(As...), B (*)(Bs...)) {
  if constexpr (sizeof...(As) == sizeof...(Bs))
    return alike_value<A, B> && (alike_value<As, Bs> && ...);
  else
    return false;
}
#define SAME(name) static_assert(alike(&nccl##name, ours::Calls{}.name), "the arguments of nccl" #name)
SAME(GetVersion);
SAME(GetUniqueId);
SAME(CommInitRankConfig);
SAME(CommFinalize);
SAME(CommDestroy);
SAME(CommAbort);
SAME(CommGetAsyncError);
SAME(GetErrorString);
SAME(CommCount);
SAME(CommUserRank);
SAME(GroupStart);
SAME(GroupEnd);
SAME(Send);
SAME(Recv);
SAME(AllReduce);
SAME(Broadcast);
SAME(Reduce);
SAME(AllGather);
SAME(ReduceScatter);
SAME(GetLastError);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
SAME(CommSplit);
#endif

#endif
