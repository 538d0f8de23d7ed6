#include "transports/mpi.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace gpucomm {
namespace {

class Library {
 public:
  explicit Library(const std::string& file)
      : handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD)), file_(file) {
    if (!handle_) fail(ErrorKind::unavailable, "mpi4py's extension ", file, " is not loaded: ", dlerror());
  }
  ~Library() { dlclose(handle_); }
  Library(const Library&) = delete;

  // The look-up goes through what the extension was linked with: the MPI that mpi4py uses.
  template <class Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (!function)
      fail(ErrorKind::unavailable, name, " was not found in the MPI that ", file_, " has loaded");
  }

 private:
  void* handle_;
  std::string file_;
};

// Handle: MPI_Comm, MPI_Datatype and MPI_Request, all of one size.
template <class Handle>
class Mpi : public Wire {
 public:
  explicit Mpi(const MpiFacts& facts) : library_(facts.library) {
    library_.find("MPI_Isend", isend_);
    library_.find("MPI_Issend", issend_);
    library_.find("MPI_Irecv", irecv_);
    library_.find("MPI_Test", test_);
    library_.find("MPI_Cancel", cancel_);
    library_.find("MPI_Finalized", finalized_);
    library_.find("MPI_Error_string", error_string_);
    std::memcpy(&communicator_, &facts.communicator, sizeof(Handle));
    std::memcpy(&byte_, &facts.byte, sizeof(Handle));
  }

  Request send(Peer peer, int stream, const std::byte* data, size_t bytes, bool matched) override {
    const auto [number, slot] = take(peer.rank);
    check(matched ? "MPI_Issend" : "MPI_Isend", peer.rank,
          (matched ? issend_ : isend_)(data, static_cast<int>(bytes), byte_, peer.number, stream,
                                       communicator_, &slot->request));
    return number;
  }

  Request receive(Peer peer, int stream, std::byte* data, size_t most) override {
    const auto [number, slot] = take(peer.rank);
    check("MPI_Irecv", peer.rank,
          irecv_(data, static_cast<int>(most), byte_, peer.number, stream, communicator_, &slot->request));
    return number;
  }

  bool done(Request number) override {
    int flag = 0;
    Status status;
    Slot& slot = at(number);
    check("MPI_Test", slot.rank, test_(&slot.request, &flag, &status));
    if (flag) give(number);
    return flag;
  }

  bool cancel(Request number) override {
    int over = 0, flag = 0;
    if (finalized_(&over) || over) return true;  // it went with MPI
    Status status;
    Slot& slot = at(number);
    if (cancel_(&slot.request) || test_(&slot.request, &flag, &status) || !flag) return false;
    give(number);
    return true;
  }

 private:
  struct alignas(16) Status {  // larger than any MPI's
    char bytes[64];
  };
  struct Slot {
    Handle request;
    int rank;  // of the peer
  };

  // Requests live where they do not move, for another thread may test one meanwhile.
  static constexpr size_t kBlock = 256;
  std::pair<Request, Slot*> take(int rank) {
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
      blocks_.push_back(std::make_unique<Slot[]>(kBlock));
      for (size_t i = kBlock; i-- > 0;) free_.push_back((blocks_.size() - 1) * kBlock + i);
    }
    const Request number = free_.back();
    free_.pop_back();
    Slot& slot = blocks_[number / kBlock][number % kBlock];
    slot.rank = rank;
    return {number, &slot};
  }
  Slot& at(Request number) {
    std::lock_guard lock(mutex_);
    return blocks_[number / kBlock][number % kBlock];
  }
  void give(Request number) {
    std::lock_guard lock(mutex_);
    free_.push_back(number);
  }

  void check(const char* call, int rank, int code) const {
    if (!code) return;
    char text[2048] = {};  // MPI_MAX_ERROR_STRING is at most 1024 where we know it
    int length = 0;
    error_string_(code, text, &length);
    fail(ErrorKind::peer_lost, "the connection to rank ", rank, " has failed: ", call, ": ", text);
  }

  Library library_;
  int (*isend_)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*issend_)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv_)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test_)(Handle*, int*, Status*) = nullptr;
  int (*cancel_)(Handle*) = nullptr;
  int (*finalized_)(int*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  Handle communicator_{}, byte_{};
  std::mutex mutex_;  // guards the two below
  std::vector<std::unique_ptr<Slot[]>> blocks_;
  std::vector<Request> free_;
};

}  // namespace

std::shared_ptr<Wire> open_mpi(const MpiFacts& facts) {
  if (facts.handle_bytes == 4) return std::make_shared<Mpi<int32_t>>(facts);
  if (facts.handle_bytes == 8) return std::make_shared<Mpi<void*>>(facts);
  fail(ErrorKind::unavailable, "handles of this MPI have ", facts.handle_bytes, " bytes, expected 4 or 8");
}

}  // namespace gpucomm
