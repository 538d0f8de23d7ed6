// Memory of the host device that other processes map: a memfd, which they open through /proc while its maker
// keeps it.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

namespace gpucomm {

class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);               // zeros; throws unavailable
  explicit SharedMemory(const std::string& handle);  // another one's
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_),
        file_(std::exchange(other.file_, -1)) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  std::string handle() const;  // "PID FILE BYTES"

 private:
  SharedMemory() = default;
  void map();

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int file_ = -1;  // of the maker
};

}  // namespace gpucomm
