// Whether a process lives, as /proc tells.
#pragma once

namespace gpucomm {

struct ProcessState {
  char state = 'X';       // as /proc says: R S D T Z X
  long long started = 0;  // in clock ticks since boot: tells a process from a later one of the same pid
  bool ended() const { return state == 'X' || state == 'Z'; }
};

ProcessState process_state(long long pid);

}  // namespace gpucomm
