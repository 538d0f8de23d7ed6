// The steady clock, which all waits go by, and durations as callers give them.
#pragma once
#include <chrono>
#include <cstdint>

namespace gpucomm {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

inline Clock::duration clock_time(Seconds time) { return std::chrono::duration_cast<Clock::duration>(time); }

inline uint64_t steady_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

}  // namespace gpucomm
