// What zfp:R says.
#pragma once
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace gpucomm {

// The bits of a block of four elements; 0 if `rate`, in bits per element, is none that there is. Whatever the
// process's locale: every rank, and every device, must read the same.
inline uint32_t parse_zfp(std::string_view rate) {
  double bits;
  const auto [end, error] = std::from_chars(rate.data(), rate.data() + rate.size(), bits);
  if (error != std::errc() || end != rate.data() + rate.size()) return 0;
  if (!(bits >= 2.25 && bits <= 32) || bits * 4 != std::floor(bits * 4)) return 0;
  return static_cast<uint32_t>(4 * bits);
}

}  // namespace gpucomm
