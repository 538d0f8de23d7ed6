// What gives memory back may wait for all work of a device, as cudaFree does. Where a rank that is gone has
// left some of that undone, it would wait for ever: then it is put off.
#pragma once
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace gpucomm {

class Releases {
 public:
  // Until this says so, there is work that may never end.
  void put_off(std::function<bool()> ended) {
    std::lock_guard lock(mutex_);
    unended_.push_back(std::move(ended));
  }

  // Whether what is given back is so at once.
  bool at_once() {
    run([] {});
    std::lock_guard lock(mutex_);
    return waiting_.empty();
  }

  // Now, or behind what was put off, when another release comes. What finds no memory for itself is left.
  template <class Release>
  void run(Release release) noexcept try {
    for (const auto& one : due(std::move(release))) one();
  } catch (const std::exception&) {
  }

 private:
  // Called without the lock, for they may take long.
  std::vector<std::function<void()>> due(std::function<void()> release) {
    std::lock_guard lock(mutex_);
    std::erase_if(unended_, [](const auto& ended) { return ended(); });
    waiting_.push_back(std::move(release));
    return unended_.empty() ? std::exchange(waiting_, {}) : std::vector<std::function<void()>>{};
  }

  std::mutex mutex_;  // guards all below
  std::vector<std::function<bool()>> unended_;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace gpucomm
