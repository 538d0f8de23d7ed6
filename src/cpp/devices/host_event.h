// Events of the host device, as words of memory, which processes may share. Each time that one is recorded is
// a mark of its own: who waits for an earlier one does not mind later ones.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace gpucomm {

class HostMark {
 public:
  void reach() const;
  bool done() const;
  // False: the process that should reach it has ended before.
  bool wait() const;
  long long maker() const;  // that process

 private:
  friend class HostEvent;
  struct Words;
  HostMark(std::shared_ptr<Words> words, uint64_t number) : words_(std::move(words)), number_(number) {}
  bool maker_ended() const;

  std::shared_ptr<Words> words_;
  uint64_t number_;
};

// Between processes the times that one is recorded must come in their order, whatever the streams.
class HostEvent {
 public:
  HostEvent();                                    // of this process
  explicit HostEvent(const std::string& handle);  // made by another
  static std::shared_ptr<HostEvent> make_shared();

  HostMark record();
  HostMark latest() const;
  const std::string& handle() const { return handle_; }

 private:
  mutable std::mutex mutex_;  // guards words_ of this process
  std::shared_ptr<HostMark::Words> words_;
  std::string handle_;
  bool shared_ = false;
};

}  // namespace gpucomm
