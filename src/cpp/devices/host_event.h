// Events of the host device: how often one was recorded, and how many of these times have come. They are
// words of memory, which processes may share.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "devices/shared_memory.h"

namespace gpucomm {

class HostEvent {
 public:
  HostEvent();                              // of this process
  explicit HostEvent(SharedMemory memory);  // made here, for others to open
  static std::shared_ptr<HostEvent> open(const std::string& handle);

  uint64_t record();
  void reach(uint64_t number);
  uint64_t recorded() const;
  bool done() const;
  // False: the process that records it has ended before.
  bool wait(uint64_t number);
  std::string handle() const { return memory_->handle(); }  // of a shared one
  long long maker() const;                                  // the process

  static size_t bytes();

 private:
  struct Words;
  struct Opened {};
  HostEvent(SharedMemory memory, Opened);
  bool maker_ended() const;

  std::optional<SharedMemory> memory_;
  std::shared_ptr<Words> own_;
  Words* words_;
};

}  // namespace gpucomm
