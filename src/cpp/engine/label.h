// What the calls are for that one thread makes for a while, apart from all others beside them: ranks that
// make the same call for different things are found. 0: nothing.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace gpucomm {

class Label {
 public:
  // Of a gradient's way: which optimizer of the communicator's, from 1, which round of its, which bucket, and
  // how often it has stepped before; of each the lower bits.
  Label(uint64_t optimizer, uint64_t round, uint64_t bucket, uint64_t steps)
      : own_(low(optimizer) << 48 | low(steps) << 32 | low(round) << 16 | low(bucket)) {}

  // From here until end(), by the same thread.
  void begin() { former_ = std::exchange(current_, own_); }
  void end() { current_ = former_; }

  // Of this thread.
  static uint64_t current() { return current_; }
  static std::string text(uint64_t label) {
    const uint64_t steps = low(label >> 32);
    return concat("bucket ", low(label), " in round ", low(label >> 16), " of optimizer ", low(label >> 48),
                  steps ? concat(" after ", steps, steps == 1 ? " step" : " steps") : "");
  }

 private:
  static uint64_t low(uint64_t number) { return number & 0xffff; }

  inline static thread_local uint64_t current_ = 0;
  uint64_t own_, former_ = 0;
};

}  // namespace gpucomm
