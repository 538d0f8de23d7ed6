// What is done around a call with arrays that do not travel as they are: contributions times a factor, and,
// on devices, several arrays in one message. Both lie behind the program's scratch, which the communicator
// keeps; and behind them what a piece became, where it is measured what its encoding loses.
#pragma once
#include <optional>
#include <vector>

#include "engine/device_steps.h"

namespace gpucomm {

struct Staging {
  struct Copy {
    std::byte* array;
    size_t offset, bytes;  // of the staging memory
  };
  Dtype dtype = Dtype::float32;
  size_t bytes = 0;
  std::vector<Copy> in, out;     // before the call, and after it
  std::optional<double> factor;  // of what comes in
  // Where the call's input, output and error begin; none: the array of the caller's.
  std::optional<size_t> input, output, error;
};

// Whether there is anything to do.
inline bool staged(const Arrays& arrays) { return arrays.staging || arrays.error || arrays.factor; }
// Bytes of scratch, both the program's and that of what is staged or measured.
size_t scratch_of(const Program& program, const Arrays& arrays);
// The arrays that the call itself works on.
Arrays staged_arrays(const Program& program, const Arrays& arrays, std::byte* scratch);
// As spaces_of().
Spaces staged_spaces(const Program& program, const Arrays& arrays, std::byte* scratch);
// What the call's encodings lose, where arrays want to know.
Lost lost_of(const Program& program, const Arrays& arrays, std::byte* scratch);
// Enqueues zeros, whatever was there.
void clear(Device& device, std::byte* memory, size_t bytes, Stream stream);
// Enqueued before the call, and after it. Before: the error is zeros.
void stage_in(const Program& program, const Arrays& arrays, std::byte* scratch, Stream stream);
void stage_out(const Program& program, const Arrays& arrays, std::byte* scratch, Stream stream);
// The same of arrays on the host, at once; of a call that has staging.
void stage_in_on_host(const Program& program, const Arrays& arrays, std::byte* scratch);
void stage_out_on_host(const Program& program, const Arrays& arrays, std::byte* scratch);

}  // namespace gpucomm
