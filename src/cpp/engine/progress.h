// The progress thread: one a process, started by the first asynchronous call; drives communicators while
// nobody waits for them. It never touches Python.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace gpucomm {

class Communicator;

class Progress {
 public:
  static Progress& instance();
  // Drives the communicator until it has no call under way.
  void add(Communicator& communicator);
  // Returns when the thread can not touch the communicator any more.
  void forget(Communicator& communicator);

 private:
  void loop();
  bool drive_all();
  void rest();

  std::mutex mutex_;  // guards all below; held while driving, which never blocks
  std::condition_variable work_;
  std::vector<Communicator*> communicators_;
  bool running_ = false;
};

}  // namespace gpucomm
