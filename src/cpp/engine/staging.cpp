#include "engine/staging.h"

namespace gpucomm {
namespace {

// Behind the program's scratch, aligned as a device allocates.
size_t begin_of(const Program& program) {
  constexpr size_t kUnit = 256;
  return (program.scratch_bytes + kUnit - 1) / kUnit * kUnit;
}

// x xor x, whatever the bits.
void clear(Device& device, std::byte* memory, size_t bytes, Stream stream) {
  if (bytes) device.reduce({Dtype::uint8, Op::bxor, 1, {memory}, {memory, memory}, bytes}, stream);
}

}  // namespace

size_t scratch_of(const Program& program, const Arrays& arrays) {
  return arrays.staging ? begin_of(program) + arrays.staging->bytes : program.scratch_bytes;
}

Arrays staged_arrays(const Program& program, const Arrays& arrays, std::byte* scratch) {
  if (!arrays.staging) return arrays;
  const Staging& staging = *arrays.staging;
  std::byte* const begin = scratch + begin_of(program);
  Arrays staged = arrays;
  if (staging.input) staged.input = begin + *staging.input;
  if (staging.output) staged.output = begin + *staging.output;
  return staged;
}

Spaces staged_spaces(const Program& program, const Arrays& arrays, std::byte* scratch) {
  return spaces_of(program, staged_arrays(program, arrays, scratch), scratch);
}

void stage_in(const Program& program, const Arrays& arrays, std::byte* scratch, Stream stream) {
  Device& device = *arrays.device;
  if (arrays.error) clear(device, arrays.error, program.shape.count * size_of(program.shape.dtype), stream);
  if (!arrays.staging) return;
  const Staging& staging = *arrays.staging;
  for (const Staging::Copy& copy : staging.in) {
    std::byte* const to = scratch + begin_of(program) + copy.offset;
    if (!copy.bytes) continue;
    if (staging.factor)
      device.scale(staging.dtype, to, copy.array, copy.bytes / size_of(staging.dtype), *staging.factor,
                   stream);
    else
      device.copy(to, copy.array, copy.bytes, stream);
  }
}

void stage_out(const Program& program, const Arrays& arrays, std::byte* scratch, Stream stream) {
  if (!arrays.staging) return;
  for (const Staging::Copy& copy : arrays.staging->out)
    if (copy.bytes)
      arrays.device->copy(copy.array, scratch + begin_of(program) + copy.offset, copy.bytes, stream);
}

}  // namespace gpucomm
