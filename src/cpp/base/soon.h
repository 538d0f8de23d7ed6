// A short wait at an end, for what should hold by then.
#pragma once
#include <chrono>
#include <thread>

namespace gpucomm {

// For what calls of abort() wait for, which returns within a second.
inline constexpr std::chrono::milliseconds kAtAnEnd{700};

// Whether it holds within that time.
template <class Condition>
bool soon(std::chrono::milliseconds patience, Condition holds) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace gpucomm
