// Hashes of small values, the same on every machine.
#pragma once
#include <cstdint>

namespace gpucomm {

inline uint64_t mix(uint64_t hash, uint64_t value) {  // splitmix64's finaliser
  hash += 0x9e3779b97f4a7c15 + value;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

}  // namespace gpucomm
