// The SIMD levels for which host loops are compiled, and which of them is in use.
#pragma once
#include <string_view>
#include <vector>

// The targets of levels, as attributes name them. (GCC's pragma takes no macro: reduce.cpp repeats them for
// it.)
#if defined(__x86_64__) && defined(__GNUC__)
#define GPUCOMM_X86_LEVELS 1
#define GPUCOMM_V3 "arch=x86-64-v3"
#ifdef __clang__
#define GPUCOMM_V4 "arch=x86-64-v4"
#else
#define GPUCOMM_V4 "arch=x86-64-v4,prefer-vector-width=512"
#endif
#endif

namespace gpucomm {

enum class Simd { v1, v3, v4 };  // v1 is also what other processors run

Simd simd();  // the level in use

// Its name ("v1", "v3", "v4", "generic"), from the CPU or GPUCOMM_SIMD; the levels this CPU can run.
std::string_view simd_level();
std::vector<std::string_view> simd_levels();
// Forces a level (tests); throws invalid_argument naming the known ones.
void set_simd_level(std::string_view level);

}  // namespace gpucomm
