// shm: processes of one node; mailboxes in a memfd, which has no name and ends with its last process.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/memory_limits.h"
#include "base/process.h"
#include "transports/mailbox.h"
#include "transports/regions.h"

namespace gpucomm {
namespace {

std::byte* map(int fd, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, bytes, MADV_HUGEPAGE);  // most kernels are told not to give them to shared memory
  madvise(p, bytes, MADV_DONTDUMP);  // a core dump would give all that is only addresses its memory
  return static_cast<std::byte*>(p);
}

// All of the file, or where the process may not map that much, the mailboxes at its start.
struct FileRegion : Region {
  FileRegion(int fd, size_t least) {
    struct stat status{};
    if (fstat(fd, &status) || static_cast<size_t>(status.st_size) < least)
      fail(ErrorKind::mismatch, "the shared memory is ", status.st_size,
           " bytes long, a region of this world needs ", least,
           ": do all ranks run the same version of gpucomm?");
    for (const size_t bytes : {static_cast<size_t>(status.st_size), least}) {
      if (!(base = map(fd, bytes))) continue;
      size = bytes, detachable = true;
      file = fcntl(fd, F_DUPFD_CLOEXEC, 0);
      if (file >= 0) return;
      const int error = errno;
      munmap(base, size);
      fail(ErrorKind::unavailable, "the shared memory cannot be kept open: ", std::strerror(error),
           " (the limit of open files is ulimit -n)");
    }
    fail(ErrorKind::unavailable, "could not map ", least, " bytes of shared memory: ", std::strerror(errno));
  }
  ~FileRegion() override {
    munmap(base, size);
    close(file);
  }
  // In slices: a signal undoes one that is under way, so a timer could keep a long one from ever ending; and
  // other ranks take memory meanwhile.
  std::string back(size_t offset, size_t bytes) override {
    for (size_t done = 0; done < bytes;) {
      std::string why = grant(bytes - done);
      const size_t n = std::min(granted_, bytes - done);
      if (why.empty()) why = take(offset + done, n);
      if (!why.empty()) {
        unback(offset, done);
        return why;
      }
      done += n, granted_ -= n;
    }
    return "";
  }
  void unback(size_t offset, size_t bytes) override {
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
  }
  void detach(size_t offset, size_t bytes) override {
    void* own = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) return;
    std::memcpy(own, base + offset, bytes);
    mremap(own, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, base + offset);
  }
  int file = -1;

 private:
  // Asks before memory is taken, for beyond what a cgroup may have the kernel ends a process. That takes some
  // files to read: where there is plenty once for several short pieces, elsewhere each time and in short
  // steps, so that ranks that ask at once do not all take the last of it.
  std::string grant(size_t rest) {
    constexpr size_t kStep = 4 << 20, kSlice = 64 << 20, kPlenty = 512 << 20;
    constexpr size_t kOwn = 4 << 20;  // left to the processes themselves
    if (granted_ >= std::min(rest, kStep)) return "";
    const auto room = memory_limits().room(rest + kPlenty);
    if (room.bytes < rest + kOwn)
      return concat(room.told_by, " leaves ", room.bytes, ", and ", kOwn,
                    " are kept for the processes themselves");
    granted_ = room.bytes < rest + kPlenty ? std::min(rest, kStep) : std::min(rest + kStep, kSlice);
    return "";
  }
  std::string take(size_t offset, size_t bytes) const {
    while (fallocate(file, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes)))
      if (errno != EINTR) return std::strerror(errno);
    return "";
  }
  size_t granted_ = 0;  // bytes that may be taken unasked
};

class Shm : public Mailbox {
 public:
  Shm(std::shared_ptr<Region> region, int rank, int world, int channel)
      : Mailbox(std::move(region), rank, world, channel) {
    set_process(getpid(), own_birth());
  }

  bool attaches() const override { return true; }

  std::string gone(int rank) const override {
    const auto [pid, birth] = who(rank);
    if (std::string left = Mailbox::gone(rank); !left.empty()) return left;
    if (!pid) return "";
    return process_state(pid).lost(birth) ? concat("is gone (pid ", pid, " has ended)") : "";
  }

  std::string describe(int rank) const override {
    const int64_t pid = who(rank).first;
    if (!pid) return "never attached";
    const char state = process_state(pid).state;
    return concat("pid ", pid, state == 'T' || state == 't' ? ", stopped" : "");
  }
};

std::unique_ptr<Transport> open_shm(const Endpoint& endpoint) {
  if (endpoint.fd < 0)
    fail(ErrorKind::invalid_argument, "transport 'shm' needs the file descriptor of its memory");
  auto region = std::make_shared<FileRegion>(endpoint.fd, mailbox_bytes(endpoint.world));
  return std::make_unique<Shm>(region, endpoint.rank, endpoint.world, endpoint.channel);
}

const Registry<TransportEntry>::Add add{
    "shm",
    {"processes of one node, through shared memory", "Linux: memfd and abstract unix sockets", open_shm}};

}  // namespace

static bool fits(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  munmap(p, bytes);
  return true;
}

// Communicators may be many, each maps its file twice, and arrays of the process need addresses too: of a
// limit as much as is taken, and a fourth in any case.
static bool leaves_addresses(size_t bytes) {
  constexpr size_t kRest = size_t{256} << 30;
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur != RLIM_INFINITY;
  return fits(2 * bytes + (limited ? std::max(bytes, std::min<size_t>(limit.rlim_cur / 4, kRest)) : kRest));
}

// The largest of these heaps for each rank that the file may hold and this process map; the other ranks have
// its limits.
static size_t size_file(int fd, int world, const std::vector<size_t>& heaps) {
  for (const size_t heap : heaps) {
    const size_t bytes = mailbox_bytes(world) + heap * world;
    if (ftruncate(fd, static_cast<off_t>(bytes))) continue;
    if (heap && !leaves_addresses(bytes)) continue;
    if (std::byte* base = map(fd, bytes)) {
      format_region(base, world, heap);
      munmap(base, bytes);
      return bytes;
    }
  }
  return 0;
}

int make_shm_fd(int world, std::optional<size_t> heap_bytes) {
  const size_t least = mailbox_bytes(world);                        // refuses a world that is too large
  const std::vector<size_t> heaps = heap_sizes(world, heap_bytes);  // ... or what the environment says
  const int fd = memfd_create("gpucomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(ErrorKind::unavailable, "memfd_create failed: ", std::strerror(errno));
  if (!size_file(fd, world, heaps) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
    const int error = errno;
    close(fd);
    fail(ErrorKind::unavailable, "could not size or map shared memory of ", least,
         " bytes: ", std::strerror(error));
  }
  return fd;
}

}  // namespace gpucomm
