// NCCL found at run time: nothing is linked, and no header of it is needed.
#pragma once
#include <memory>
#include <string>

#include "devices/nccl_types.h"

namespace gpucomm {

class NcclLibrary {
 public:
  // `path`: a file, or the soname for the dynamic linker to find. Throws unavailable: not found, too old, or
  // without a call that is needed. Never unloaded: NCCL has threads of its own.
  static std::shared_ptr<const NcclLibrary> load(const std::string& path);

  const nccl::Calls& calls() const { return calls_; }
  std::string version_text() const;                  // "2.27.3"
  const std::string& file() const { return file_; }  // where the dynamic linker found it
  // Whether it has a call, by its full name: "ncclCommSplit".
  bool has(const std::string& name) const;

  nccl::UniqueId unique_id() const;
  // NCCL's words for a result, with what it last said of the communicator (null: of any).
  std::string describe(int result, nccl::Comm comm) const;

 private:
  NcclLibrary(void* handle, const std::string& path);
  template <class Call>
  void find(const char* name, Call*& call, bool needed = true);
  void find_calls();

  void* handle_;
  std::string file_;
  int version_ = 0;  // 22703
  nccl::Calls calls_{};
};

}  // namespace gpucomm
