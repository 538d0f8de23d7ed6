// Whether a process lives, as /proc tells.
#pragma once
#include <cstdint>

namespace gpucomm {

// When a process started: tells it from a later one of the same pid.
struct Birth {
  long long ticks = 0;  // since boot; 0: not known
  uint64_t clock = 0;   // by which they count: the time namespace of who read them; 0: not known
};

struct ProcessState {
  char state = 'X';       // as /proc says: R S D T Z X; '?': it lives, or could not be asked
  long long started = 0;  // as Birth::ticks, by this process's clock
  bool ended() const { return state == 'X' || state == 'Z'; }
  // Whether it is not the process that was born then, or not any more; false where nobody can tell.
  bool lost(const Birth& birth) const;
};

ProcessState process_state(long long pid);
Birth own_birth();

}  // namespace gpucomm
