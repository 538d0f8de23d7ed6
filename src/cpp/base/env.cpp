#include "base/env.h"

#include <cstdlib>

#include "base/error.h"

namespace gpucomm {

static std::string text(const char* name, const char* fallback = "") {
  const char* value = std::getenv(name);
  return value && *value ? value : fallback;
}

static std::string way(const char* name) {
  const std::string value = text(name, "auto");
  for (const char* known : {"auto", "arena", "nccl", "staged"})
    if (value == known) return value;
  fail(ErrorKind::invalid_argument, name, "='", value, "' must be auto, arena, nccl or staged");
}

static int number(const char* name, int fallback, int most = 100000000) {
  const std::string value = text(name);
  if (value.empty()) return fallback;
  char* end = nullptr;
  const long parsed = std::strtol(value.c_str(), &end, 10);
  if (*end || parsed < 0 || parsed > most)
    fail(ErrorKind::invalid_argument, name, "='", value, "' must be a whole number from 0 to ", most);
  return static_cast<int>(parsed);
}

const Env& env() {
  static const Env values{text("GPUCOMM_SIMD"),
                          number("GPUCOMM_SPIN_US", -1),
                          number("GPUCOMM_HEAP_MIB", -1),
                          number("GPUCOMM_ARENA_MIB", 32),
                          way("GPUCOMM_DEVICE_TRANSPORT"),
                          number("GPUCOMM_CMA", 1, 2),
                          number("GPUCOMM_LLC_MIB", -1)};
  return values;
}

}  // namespace gpucomm
