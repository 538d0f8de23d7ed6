#include "base/simd.h"

#include <atomic>
#include <string>

#include "base/env.h"
#include "base/error.h"

namespace gpucomm {
namespace {

struct Level {
  std::string_view name;
  Simd simd;
};

#ifdef GPUCOMM_X86_LEVELS
#define GPUCOMM_HAS(feature) __builtin_cpu_supports(feature)
bool runs_v3() {
  return GPUCOMM_HAS("avx2") && GPUCOMM_HAS("bmi") && GPUCOMM_HAS("bmi2") && GPUCOMM_HAS("f16c") &&
         GPUCOMM_HAS("fma") && GPUCOMM_HAS("lzcnt") && GPUCOMM_HAS("movbe");
}

bool runs_v4() {
  return runs_v3() && GPUCOMM_HAS("avx512f") && GPUCOMM_HAS("avx512bw") && GPUCOMM_HAS("avx512cd") &&
         GPUCOMM_HAS("avx512dq") && GPUCOMM_HAS("avx512vl");
}
#undef GPUCOMM_HAS
#endif

// In ascending order.
std::vector<Level> usable_levels() {
#ifdef GPUCOMM_X86_LEVELS
  std::vector<Level> levels = {{"v1", Simd::v1}};
  __builtin_cpu_init();
  if (!runs_v3()) return levels;
  levels.push_back({"v3", Simd::v3});
  if (runs_v4()) levels.push_back({"v4", Simd::v4});
  return levels;
#else
  return {{"generic", Simd::v1}};
#endif
}

const std::vector<Level>& levels() {
  static const std::vector<Level> usable = usable_levels();
  return usable;
}

const Level* find_level(std::string_view name) {
  std::string known;
  for (const Level& level : levels()) {
    if (level.name == name) return &level;
    known += (known.empty() ? "" : ", ") + std::string(level.name);
  }
  fail(ErrorKind::invalid_argument, "SIMD level '", name,
       "' is unknown or more than this CPU can run; known: ", known,
       " (the variable GPUCOMM_SIMD takes the same names)");
}

const Level* first_level() {
  const std::string& wanted = env().simd;
  return wanted.empty() ? &levels().back() : find_level(wanted);
}

// Chosen on first use: a wrong GPUCOMM_SIMD is then an error, not a failed import.
std::atomic<const Level*>& current_level() {
  static std::atomic<const Level*> level = first_level();
  return level;
}

}  // namespace

Simd simd() { return current_level().load(std::memory_order_relaxed)->simd; }

std::string_view simd_level() { return current_level().load(std::memory_order_relaxed)->name; }

std::vector<std::string_view> simd_levels() {
  std::vector<std::string_view> names;
  for (const Level& level : levels()) names.push_back(level.name);
  return names;
}

void set_simd_level(std::string_view level) {
  current_level().store(find_level(level), std::memory_order_relaxed);
}

}  // namespace gpucomm
