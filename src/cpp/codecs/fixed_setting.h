// What fixed:EPS:WIDTH:WORLD says, and the step and the limit that follow from it.
#pragma once
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gpucomm {

struct FixedSetting {
  double eps;
  int width = 0, world = 0;  // 0: not agreed yet

  // The greatest power of two up to 2 eps.
  float step() const {
    int exponent;
    std::frexp(2 * eps, &exponent);  // 2^(exponent - 1) <= 2 eps
    return std::ldexp(1.0f, exponent - 1);
  }

  // What a sum of all ranks' codings may be off by.
  float stray() const { return 0.5f * step() * static_cast<float>(world); }

  // The largest magnitude, in steps, of which `world` summands fit; a float.
  float limit() const {
    const int64_t limit = ((int64_t{1} << (width - 1)) - 1) / world;
    const auto nearest = static_cast<float>(limit);
    return nearest > static_cast<double>(limit) ? std::nextafter(nearest, 0.0f) : nearest;
  }
};

// Reads a number, and the colon behind it unless the text ends; false if there is none.
template <class T>
bool take_number(std::string_view& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(end - text.data());
  if (text.empty()) return true;
  const bool more = text.front() == ':' && text.size() > 1;
  text.remove_prefix(1);
  return more;
}

// EPS or EPS:WIDTH:WORLD.
inline std::optional<FixedSetting> parse_fixed(std::string_view text) {
  FixedSetting setting{0};
  if (!take_number(text, setting.eps) || !(setting.eps >= 0x1p-127 && setting.eps < 0x1p96)) return {};
  if (text.empty()) return setting;
  if (!take_number(text, setting.width) || !take_number(text, setting.world) || !text.empty()) return {};
  const bool known = setting.width == 8 || setting.width == 16 || setting.width == 32;
  if (!known || setting.world < 1) return {};
  return setting;
}

}  // namespace gpucomm
