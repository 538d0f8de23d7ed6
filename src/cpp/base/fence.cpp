#include "base/fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpucomm {

static bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

bool enable_asymmetric_fence() {
  static const bool enabled =
      membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
  return enabled;
}

void heavy_fence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (enable_asymmetric_fence()) membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

}  // namespace gpucomm
