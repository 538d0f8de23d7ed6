// The Math of a codec, of the argument in its spec.
#pragma once
#include <cstdlib>
#include <string>

#include "codecs/fixed_setting.h"
#include "cuda/casts_program.h"
#include "cuda/fixed_program.h"
#include "cuda/fp8_program.h"
#include "cuda/integers_program.h"
#include "cuda/zfp_program.h"

namespace gpucomm::cuda {

template <class Math>
struct MathOf {
  static Math make(std::string_view) { return {}; }
};

template <>
struct MathOf<Zfp> {  // the rate, in bits per element
  static Zfp make(std::string_view argument) {
    return {static_cast<unsigned>(4 * std::strtod(std::string(argument).c_str(), nullptr))};
  }
};

template <class T>
struct MathOf<Fixed<T>> {
  static Fixed<T> make(std::string_view argument) {
    const FixedSetting setting = parse_fixed(argument).value();
    return {setting.step(), 1 / setting.step(), setting.limit()};
  }
};

}  // namespace gpucomm::cuda
