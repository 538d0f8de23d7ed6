// A fence whose two sides cost very differently: who publishes and then looks for sleepers pays nothing, who
// announces a sleep and then looks for messages makes all running ranks fence (membarrier). On x86 and ARM
// alike a full fence after each message would wait for its cache line to travel.
#pragma once
#include <atomic>

namespace gpucomm {

// Prepares this process; false where the kernel does not offer it: then every rank must use full fences.
bool enable_asymmetric_fence();

inline void light_fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }
void heavy_fence();

}  // namespace gpucomm
