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
  // Of a gradient's way: which optimizer of the communicator's, from 1, which round of its, which bucket; of
  // each the lower bits.
  Label(uint64_t optimizer, uint64_t round, uint64_t bucket)
      : own_((optimizer & 0xffff) << 48 | (round & 0xffffffff) << 16 | (bucket & 0xffff)) {}

  // From here until end(), by the same thread.
  void begin() { former_ = std::exchange(current_, own_); }
  void end() { current_ = former_; }

  // Of this thread.
  static uint64_t current() { return current_; }
  static std::string text(uint64_t label) {
    return concat("bucket ", label & 0xffff, " in round ", label >> 16 & 0xffffffff, " of optimizer ",
                  label >> 48);
  }

 private:
  inline static thread_local uint64_t current_ = 0;
  uint64_t own_, former_ = 0;
};

}  // namespace gpucomm
