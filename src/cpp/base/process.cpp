#include "base/process.h"

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>

namespace gpucomm {

ProcessState process_state(long long pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  ProcessState result;
  // Without a free file descriptor, say, a living process must not seem to have ended.
  if (!file && errno != ENOENT && errno != ESRCH) result.state = '?';
  if (!std::getline(file, line)) return result;
  std::istringstream rest(line.substr(line.rfind(')') + 2));  // the name before may hold anything
  rest >> result.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  rest >> result.started;
  return result;
}

}  // namespace gpucomm
