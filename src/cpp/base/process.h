// Whether a process lives, as /proc tells.
#pragma once

namespace gpucomm {

struct ProcessState {
  char state = 'X';       // as /proc says: R S D T Z X; '?': it could not be asked
  long long started = 0;  // in clock ticks since boot: tells a process from a later one of the same pid
  bool ended() const { return state == 'X' || state == 'Z'; }
  // Whether it is not the process that started then, or not any more; false where nobody can tell.
  bool lost(long long since) const { return ended() || (started && since && started != since); }
};

ProcessState process_state(long long pid);

}  // namespace gpucomm
