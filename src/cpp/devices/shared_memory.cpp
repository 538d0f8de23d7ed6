#include "devices/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/error.h"

namespace gpucomm {

SharedMemory::SharedMemory(size_t bytes) : SharedMemory() {  // what is thrown below comes to the destructor
  bytes_ = bytes, file_ = memfd_create("gpucomm-device", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)))
    fail(ErrorKind::unavailable, "no memory for ", bytes,
         " bytes that processes share on the host device: ", std::strerror(errno));
  map();
}

SharedMemory::SharedMemory(const std::string& handle) : SharedMemory() {
  std::istringstream words(handle);
  long long pid = 0, file = -1;
  words >> pid >> file >> bytes_;
  const std::string path = concat("/proc/", pid, "/fd/", file);
  file_ = words ? open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
  if (file_ < 0)
    fail(ErrorKind::unavailable, "memory of process ", pid, " on the host device cannot be opened (", path,
         "): ", std::strerror(errno));
  map();
  close(std::exchange(file_, -1));  // the map is enough
}

void SharedMemory::map() {
  void* const p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (p == MAP_FAILED)
    fail(ErrorKind::unavailable, "could not map ", bytes_,
         " bytes that processes share: ", std::strerror(errno));
  data_ = static_cast<std::byte*>(p);
}

SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, bytes_);
  if (file_ >= 0) close(file_);
}

std::string SharedMemory::handle() const { return concat(getpid(), ' ', file_, ' ', bytes_); }

}  // namespace gpucomm
