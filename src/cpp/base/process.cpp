#include "base/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>

namespace gpucomm {
namespace {

// Also what /proc does not show: there may be none, or one that hides others' processes.
bool there_is(long long pid) { return !kill(static_cast<pid_t>(pid), 0) || errno != ESRCH; }

// Each time namespace has a clock of its own.
uint64_t own_clock() {
  struct stat status{};
  return stat("/proc/self/ns/time", &status) ? 0 : status.st_ino;
}

}  // namespace

ProcessState process_state(long long pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  ProcessState result;
  // Without a free file descriptor, say, a living process must not seem to have ended.
  if (!file && ((errno != ENOENT && errno != ESRCH) || there_is(pid))) result.state = '?';
  if (!std::getline(file, line)) return result;
  std::istringstream rest(line.substr(line.rfind(')') + 2));  // the name before may hold anything
  rest >> result.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  rest >> result.started;
  return result;
}

Birth own_birth() { return {process_state(getpid()).started, own_clock()}; }

bool ProcessState::lost(const Birth& birth) const {
  const bool differ = started && birth.ticks && started != birth.ticks;
  return ended() || (differ && birth.clock == own_clock());
}

}  // namespace gpucomm
