#include "devices/nccl_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace gpucomm {
namespace {

// The code had three digits less before 2.9.
std::string text_of(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int rest = version < 10000 ? version % 1000 : version % 10000;
  return concat(major, ".", rest / 100, ".", rest % 100);
}

std::string file_of(void* symbol, const std::string& otherwise) {
  Dl_info info;
  return dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : otherwise;
}

}  // namespace

std::shared_ptr<const NcclLibrary> NcclLibrary::load(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) fail(ErrorKind::unavailable, "NCCL cannot be loaded: ", dlerror());
  return std::shared_ptr<const NcclLibrary>(new NcclLibrary(handle, path));
}

NcclLibrary::NcclLibrary(void* handle, const std::string& path) : handle_(handle), file_(path) {
  find("ncclGetVersion", calls_.GetVersion);
  file_ = file_of(reinterpret_cast<void*>(calls_.GetVersion), path);
  if (const int code = calls_.GetVersion(&version_))
    fail(ErrorKind::unavailable, "ncclGetVersion of ", file_, " failed with code ", code);
  if (version_ < nccl::kOldestVersion)
    fail(ErrorKind::unavailable, file_, " is NCCL ", text_of(version_), ", gpucomm needs ",
         text_of(nccl::kOldestVersion),
         " or newer: older ones go on to use the place of a communicator that has been given up");
  find_calls();
}

template <class Call>
void NcclLibrary::find(const char* name, Call*& call, bool needed) {
  call = reinterpret_cast<Call*>(dlsym(handle_, name));
  if (!call && needed)
    fail(ErrorKind::unavailable, file_, " has no ", name, ", which every NCCL from ",
         text_of(nccl::kOldestVersion), " on has: is it NCCL?");
}

void NcclLibrary::find_calls() {
  find("ncclGetUniqueId", calls_.GetUniqueId);
  find("ncclCommInitRankConfig", calls_.CommInitRankConfig);
  find("ncclCommFinalize", calls_.CommFinalize);
  find("ncclCommDestroy", calls_.CommDestroy);
  find("ncclCommAbort", calls_.CommAbort);
  find("ncclCommGetAsyncError", calls_.CommGetAsyncError);
  find("ncclGetErrorString", calls_.GetErrorString);
  find("ncclCommCount", calls_.CommCount);
  find("ncclCommUserRank", calls_.CommUserRank);
  find("ncclGroupStart", calls_.GroupStart);
  find("ncclGroupEnd", calls_.GroupEnd);
  find("ncclSend", calls_.Send);
  find("ncclRecv", calls_.Recv);
  find("ncclAllReduce", calls_.AllReduce);
  find("ncclBroadcast", calls_.Broadcast);
  find("ncclReduce", calls_.Reduce);
  find("ncclAllGather", calls_.AllGather);
  find("ncclReduceScatter", calls_.ReduceScatter);
  find("ncclGetLastError", calls_.GetLastError, false);
  find("ncclCommSplit", calls_.CommSplit, false);
}

std::string NcclLibrary::version_text() const { return text_of(version_); }

bool NcclLibrary::has(const std::string& name) const { return dlsym(handle_, name.c_str()) != nullptr; }

nccl::UniqueId NcclLibrary::unique_id() const {
  nccl::UniqueId id;
  if (const int code = calls_.GetUniqueId(&id))
    fail(ErrorKind::unavailable, "ncclGetUniqueId failed: ", describe(code, nullptr));
  return id;
}

std::string NcclLibrary::describe(int result, nccl::Comm comm) const {
  const std::string kind = calls_.GetErrorString(result);
  const char* const last = calls_.GetLastError ? calls_.GetLastError(comm) : nullptr;
  return last && *last ? kind + " (" + last + ")" : kind;
}

}  // namespace gpucomm
