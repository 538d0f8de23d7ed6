// What the calls are for that one thread makes for a while, apart from all others beside them: ranks that
// make the same call for different things are found. 0: nothing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace gpucomm {

class Label {
 public:
  // Of a gradient's way: which optimizer of the communicator's, from 1, which round of its, which bucket, and
  // how often it has stepped before; of each the lower bits. Of weights, in place of the steps: how many of
  // the bucket's parameters are not frozen.
  Label(uint64_t optimizer, uint64_t round, uint64_t bucket, uint64_t steps, std::optional<uint64_t> trained)
      : own_(low(optimizer) << 48 | (trained ? kTrained | *trained % kTrained : steps % kTrained) << 32 |
             low(round) << 16 | low(bucket)) {}

  // From here until end(), by the same thread.
  void begin() { former_ = std::exchange(current_, own_); }
  void end() { current_ = former_; }

  // Of this thread.
  static uint64_t current() { return current_; }
  static std::string text(uint64_t label) {
    const uint64_t steps = low(label >> 32), trained = steps % kTrained;
    return concat("bucket ", low(label), " in round ", low(label >> 16), " of optimizer ", low(label >> 48),
                  steps & kTrained ? concat(", ", trained, " of its parameters not frozen")
                  : steps          ? concat(" after ", steps, steps == 1 ? " step" : " steps")
                                   : "");
  }

 private:
  static constexpr uint64_t kTrained = 0x8000;  // that it says so
  static uint64_t low(uint64_t number) { return number & 0xffff; }

  inline static thread_local uint64_t current_ = 0;
  uint64_t own_, former_ = 0;
};

}  // namespace gpucomm
