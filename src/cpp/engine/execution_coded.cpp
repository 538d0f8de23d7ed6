// Steps on coded pieces.
#include <algorithm>

#include "base/copy.h"
#include "codecs/coding.h"
#include "codecs/floats.h"
#include "engine/execution.h"
#include "reduce/reduce.h"

namespace gpucomm {

// How long it is the message says itself, in its first chunk.
Execution::Outcome Execution::receive_coded(const Instruction& in, LaneState& lane) {
  if (in.peers.empty()) return Outcome::finished;
  SendProgress& progress = lane.progress;
  std::byte* const slot = at(in.target, in.target_offset);
  Outcome outcome = Outcome::waiting;
  while (!progress.begun || progress.moved < kCodedHeader + coded_size(slot)) {
    const Chunk* chunk = expected_.next(in.peers[0], in);
    if (!chunk) return outcome;
    const size_t bytes = chunk->bytes;
    if (bytes > program_->coded_slot_bytes - progress.moved || (!progress.begun && bytes < kCodedHeader))
      fail(ErrorKind::mismatch, "a coded message of rank ", in.peers[0], " is damaged: ", bytes,
           " bytes more where ", program_->coded_slot_bytes - progress.moved, " can be, in ",
           describe(record()));
    if (!transport_->take(in.peers[0], *chunk, slot + progress.moved, copy_bytes)) return outcome;
    progress.moved += bytes, progress.begun = true;
    outcome = Outcome::moved;
  }
  return Outcome::finished;
}

void Execution::code(const Instruction& in) try {
  if (!in.bytes && in.kind != StepKind::encode) return;  // an empty piece does not travel
  const Shape& shape = program_->shape;
  const PieceCoding coding{*shape.codec, shape.dtype, in.bytes / size_of(shape.dtype),
                           program_->coded_slot_bytes - kCodedHeader};
  const std::byte* source = at(in.source, in.source_offset);
  std::byte* target = at(in.target, in.target_offset);
  if (in.kind == StepKind::encode) return encode(in, coding);
  if (in.encodes >= 0) return recode(in, coding);
  if (in.row != InRow::no) return add_wide(in, coding);
  if (in.kind == StepKind::reduce)
    coding.add(source, target);
  else if (in.kind == StepKind::decode_reduce)
    coding.decode_onto(source, operand(in), target), ++decodes_;
  else
    coding.decode(source, target, false), ++decodes_;
  if (!in.final || shape.op != Op::mean || target == nullptr) return;
  const void* sums[] = {target};
  reduce(shape.dtype, Op::sum, target, sums, 1, coding.count, program_->world);
} catch (const RefusedElement& refused) {
  refuse(in.encodes >= 0 ? program_->instructions[in.encodes] : in, refused);
}

// To the sum of a row, which the last one divides, if it is a mean, and rounds.
void Execution::add_wide(const Instruction& in, PieceCoding coding) {
  const Dtype dtype = coding.dtype;
  std::byte* const sum = at({Space::scratch}, program_->wide_begin);
  std::byte* const target = at(in.target, in.target_offset);
  if (in.row == InRow::first) convert(dtype, target, Dtype::float32, sum, coding.count);
  coding.dtype = Dtype::float32;
  coding.decode(at(in.source, in.source_offset), sum, true), ++decodes_;
  if (in.row != InRow::last) return;
  const void* sums[] = {sum};
  if (in.final && program_->shape.op == Op::mean)
    reduce(Dtype::float32, Op::sum, sum, sums, 1, coding.count, program_->world);
  convert(Dtype::float32, sum, dtype, target, coding.count);
}

// What a decode_reduce adds to.
const std::byte* Execution::operand(const Instruction& in) const {
  if (in.operand < 0) return at(in.target, in.target_offset);
  const Instruction& copy = program_->instructions[in.operand];
  return at(copy.source, copy.source_offset);
}

// One step after the other where the sum of what is lost must be told.
void Execution::recode(const Instruction& in, const PieceCoding& coding) {
  const Instruction& after = program_->instructions[in.encodes];
  const std::byte* from = at(in.source, in.source_offset);
  std::byte* sum = at(in.target, in.target_offset);
  const std::byte* own = operand(in);
  ++decodes_;
  if (!lost_sq_ && coding.recode(from, own, at(after.target, after.target_offset), losses(after)))
    return void(++encodes_);
  coding.decode_onto(from, own, sum);
  encode(after, coding);
}

// What a mean's sum loses once it is divided is the world's share of what the contributions lose.
Losses Execution::losses(const Instruction& in) const {
  const int times = in.final && program_->shape.op == Op::mean ? program_->world : 1;
  return {error_ && in.bytes ? error_ + in.message_offset : nullptr, times};
}

void Execution::encode(const Instruction& in, const PieceCoding& coding) {
  const Losses told = losses(in);
  CodecError lost;
  coding.encode(at(in.source, in.source_offset), at(in.target, in.target_offset), lost_sq_ ? &lost : nullptr,
                told);
  encodes_ += in.bytes > 0;
  if (lost_sq_) *lost_sq_ += lost.sum_sq * told.times * told.times;
}

// Counted in the caller's array: of what is gathered that is the part which a rank encodes first.
void Execution::refuse(const Instruction& in, const RefusedElement& refused) const {
  const auto& all = program_->instructions;
  const auto first =
      std::find_if(all.begin(), all.end(), [](auto& step) { return step.kind == StepKind::encode; });
  const size_t begin = gathers(program_->shape.collective) ? first->message_offset : 0;
  const size_t element = (in.message_offset - begin) / size_of(program_->shape.dtype) + refused.element;
  const RefusedElement told(refused.spec, element, refused.value, refused.reason);
  fail(told.kind, told.what(), " (rank ", program_->rank, " of ", program_->world, ")");
}

}  // namespace gpucomm
