// Sleeping on a word of memory, shared between processes or not.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <ctime>

namespace gpucomm {

// Returns when the word is no longer `seen`, someone woke it, or the time is up.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::microseconds at_most) {
  timespec time{at_most.count() / 1000000, at_most.count() % 1000000 * 1000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace gpucomm
