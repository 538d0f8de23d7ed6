#include "engine/staging.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/aligned.h"
#include "reduce/scale.h"

namespace gpucomm {
namespace {

// Behind the program's scratch.
size_t begin_of(const Program& program) { return round_up(program.scratch_bytes, kDeviceAlign); }

size_t end_of(const Program& program, const Arrays& arrays) {
  return arrays.staging ? begin_of(program) + arrays.staging->bytes : program.scratch_bytes;
}

// All are on one lane: what measures one of them is done with before the next.
size_t largest_encoding(const Program& program) {
  size_t most = 0;
  int lane = -1;
  for (const Instruction& in : program.instructions) {
    if (in.kind != StepKind::encode) continue;
    GPUCOMM_CHECK(lane < 0 || lane == in.lane);
    lane = in.lane, most = std::max(most, in.bytes);
  }
  return most;
}

}  // namespace

// x xor x, whatever the bits.
void clear(Device& device, std::byte* memory, size_t bytes, Stream stream) {
  if (bytes) device.reduce({Dtype::uint8, Op::bxor, 1, {memory}, {memory, memory}, bytes}, stream);
}

size_t scratch_of(const Program& program, const Arrays& arrays) {
  const size_t end = end_of(program, arrays);
  return arrays.lost_parts ? round_up(end, kDeviceAlign) + largest_encoding(program) : end;
}

Lost lost_of(const Program& program, const Arrays& arrays, std::byte* scratch) {
  if (!arrays.lost_parts) return {};
  return {arrays.lost_parts, scratch + round_up(end_of(program, arrays), kDeviceAlign)};
}

Arrays staged_arrays(const Program& program, const Arrays& arrays, std::byte* scratch) {
  if (!arrays.staging) return arrays;
  const Staging& staging = *arrays.staging;
  std::byte* const begin = scratch + begin_of(program);
  Arrays staged = arrays;
  if (staging.input) staged.input = begin + *staging.input;
  if (staging.output) staged.output = begin + *staging.output;
  if (staging.error) staged.error = begin + *staging.error;
  return staged;
}

Spaces staged_spaces(const Program& program, const Arrays& arrays, std::byte* scratch) {
  return spaces_of(program, staged_arrays(program, arrays, scratch), scratch);
}

void stage_in(const Program& program, const Arrays& arrays, std::byte* scratch, Stream stream) {
  Device& device = *arrays.device;
  if (arrays.error)
    for (const auto& [begin, end] : program.exact) clear(device, arrays.error + begin, end - begin, stream);
  const Shape& shape = program.shape;
  if (arrays.factor)
    device.scale(shape.dtype, arrays.output, arrays.input, shape.count, *arrays.factor, stream);
  if (!arrays.staging) return;
  const Staging& staging = *arrays.staging;
  std::vector<Copy> copies;
  for (const auto& [array, offset, bytes] : staging.in) {
    std::byte* const to = scratch + begin_of(program) + offset;
    if (!bytes) continue;
    if (staging.factor)
      device.scale(staging.dtype, to, array, bytes / size_of(staging.dtype), *staging.factor, stream);
    else
      copies.push_back({to, array, bytes});
  }
  if (!copies.empty()) device.copy_all(copies, stream);
}

void stage_out(const Program& program, const Arrays& arrays, std::byte* scratch, Stream stream) {
  if (!arrays.staging) return;
  std::vector<Copy> copies;
  for (const auto& [array, offset, bytes] : arrays.staging->out)
    if (bytes) copies.push_back({array, scratch + begin_of(program) + offset, bytes});
  if (!copies.empty()) arrays.device->copy_all(copies, stream);
}

void stage_in_on_host(const Program& program, const Arrays& arrays, std::byte* scratch) {
  const Staging& staging = *arrays.staging;
  for (const auto& [array, offset, bytes] : staging.in)
    scale(staging.dtype, scratch + begin_of(program) + offset, array, bytes / size_of(staging.dtype),
          staging.factor.value());
}

void stage_out_on_host(const Program& program, const Arrays& arrays, std::byte* scratch) {
  for (const auto& [array, offset, bytes] : arrays.staging->out)
    if (bytes) std::memcpy(array, scratch + begin_of(program) + offset, bytes);
}

}  // namespace gpucomm
