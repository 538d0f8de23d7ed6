// The progress thread: one a process, started by the first asynchronous call; drives what has calls under way
// while nobody waits for them. It never touches Python.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace gpucomm {

class Drivable;

class Progress {
 public:
  static Progress& instance();
  // Starts the thread, where that has not been done: before what cannot be taken back.
  void prepare();
  // Drives it until it has no call under way.
  void add(Drivable& drivable);
  // Returns when the thread cannot touch it any more.
  void forget(Drivable& drivable);

 private:
  void run();
  void loop();
  bool drive_all();
  void rest();

  // Guards all below; held while driving, which never blocks, and while looking for faults, one of which may
  // take about a second.
  std::mutex mutex_;
  std::condition_variable work_;
  std::vector<Drivable*> drivables_;
  std::chrono::steady_clock::time_point next_look_{};
  std::atomic<bool> running_{false};
};

}  // namespace gpucomm
