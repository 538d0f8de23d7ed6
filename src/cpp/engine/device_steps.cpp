#include "engine/device_steps.h"

#include "codecs/coding.h"

namespace gpucomm {
namespace {

size_t count_of(const DeviceCall& call, const Instruction& in) {
  return in.bytes / size_of(call.program.shape.dtype);
}

CodedPiece piece_of(const DeviceCall& call, const Instruction& in) {
  return {call.program.shape.codec, call.program.shape.dtype, count_of(call, in), call.faults};
}

}  // namespace

int divisor_of(const DeviceCall& call, const Instruction& in) {
  return call.program.shape.op == Op::mean && in.final ? call.program.world : 1;
}

size_t message_bytes(const Program& program, const Instruction& in) {
  const Shape& shape = program.shape;
  if (!in.coded || !in.bytes) return in.bytes;
  return kCodedHeader + shape.codec->max_bytes(in.bytes / size_of(shape.dtype), shape.dtype);
}

static Fold fold_sources(const DeviceCall& call, const Instruction& in, std::vector<const std::byte*> sources,
                         Part part) {
  const Shape& shape = call.program.shape;
  const Op op = shape.op == Op::mean ? Op::sum : shape.op;
  return {shape.dtype,          op,
          divisor_of(call, in), {call.target(in) + part.begin},
          std::move(sources),   part.bytes / size_of(shape.dtype)};
}

Fold fold_of(const DeviceCall& call, const Instruction& in, std::vector<const std::byte*> arrived,
             Part part) {
  arrived.insert(arrived.begin() + in.below, call.source(in) + part.begin);
  return fold_sources(call, in, std::move(arrived), part);
}

// What a mean's sum loses once it is divided is the world's share of what the contributions lose.
static void tell_lost(const DeviceCall& call, const Instruction& in, const CodedPiece& piece) {
  const std::byte* const slot = call.coded_target(in);
  if (call.lost.parts) {
    call.device.decode(piece, slot, call.lost.became, false, 1, call.stream);
    const Squared lost{piece.dtype, call.source(in), piece.count, 1, call.lost.became, divisor_of(call, in)};
    call.device.add_squares(lost, call.lost.parts, call.stream);
  }
  if (!call.error) return;
  std::byte* const error = call.error + in.message_offset;
  call.device.decode(piece, slot, error, false, 1, call.stream);
  call.device.difference(piece.dtype, call.source(in), error, divisor_of(call, in), piece.count, call.stream);
}

static bool tells(const DeviceCall& call) { return call.error || call.lost.parts; }

static void add_encoding(Batch& batch, const DeviceCall& call, const Instruction& in,
                         const CodedPiece& piece) {
  const Encoding encoding{piece, call.source(in), call.coded_target(in)};
  if (!piece.codec->traits().lossy || !tells(call)) return batch.encodings.push_back(encoding);
  call.device.encode_all({encoding}, call.stream);
  tell_lost(call, in, piece);
}

// As Execution::operand.
static const std::byte* operand(const DeviceCall& call, const Instruction& in) {
  return in.operand < 0 ? call.target(in) : call.source(call.program.instructions[in.operand]);
}

static void add_addition(Batch& batch, const DeviceCall& call, const Instruction& in,
                         const CodedPiece& piece) {
  const std::byte* const own = operand(call, in);
  if (own != call.target(in)) batch.copies.push_back({call.target(in), own, in.bytes});
  batch.additions.push_back({piece, call.coded_source(in), call.target(in)});
}

// One step after the other where it must be told what is lost.
static void add_recoding(Batch& batch, const DeviceCall& call, const Instruction& in,
                         const CodedPiece& piece) {
  const Instruction& after = call.program.instructions[in.encodes];
  if (!tells(call))
    return batch.recodings.push_back(
        {piece, call.coded_source(in), operand(call, in), call.coded_target(after)});
  Batch sum, coded;
  add_addition(sum, call, in, piece);
  sum.enqueue(call.device, call.stream);
  add_encoding(coded, call, after, piece);
  coded.enqueue(call.device, call.stream);
}

// As Execution::add_wide.
static void add_wide(const DeviceCall& call, const Instruction& in, CodedPiece piece) {
  const Dtype dtype = piece.dtype;
  std::byte* const sum = call.spaces[static_cast<size_t>(Space::scratch)] + call.program.wide_begin;
  std::byte* const target = call.target(in);
  if (in.row == InRow::first)
    call.device.convert(dtype, target, Dtype::float32, sum, piece.count, call.stream);
  piece.dtype = Dtype::float32;
  call.device.decode(piece, call.coded_source(in), sum, true, divisor_of(call, in), call.stream);
  if (in.row == InRow::last)
    call.device.convert(Dtype::float32, sum, dtype, target, piece.count, call.stream);
}

Traffic traffic_of(const Program& program) {
  Traffic traffic;
  Transport::Counters& counters = traffic.counters;
  for (const Instruction& in : program.instructions) {
    if (!in.bytes) continue;
    const size_t bytes = travels(in.kind) ? in.peers.size() * message_bytes(program, in) : 0;
    if (in.kind == StepKind::send) counters.bytes_sent += bytes, counters.messages_sent += in.peers.size();
    if (receives(in.kind)) counters.bytes_received += bytes;
    traffic.encodes += in.kind == StepKind::encode;
    traffic.decodes += in.kind == StepKind::decode || in.kind == StepKind::decode_reduce;
  }
  return traffic;
}

void Batch::enqueue(Device& device, Stream stream) const {
  if (!copies.empty()) device.copy_all(copies, stream);
  if (!folds.empty()) device.reduce_all(folds, stream);
  if (!additions.empty()) device.decode_all(additions, true, divisor, stream);
  if (!decodings.empty()) device.decode_all(decodings, false, divisor, stream);
  if (!recodings.empty()) device.recode_all(recodings, stream);
  if (!encodings.empty()) device.encode_all(encodings, stream);
}

void add_local(Batch& batch, const DeviceCall& call, const Instruction& in) {
  const CodedPiece piece = piece_of(call, in);
  const std::byte* const source = call.coded_source(in);
  std::byte* const target = call.target(in);
  if (!in.bytes || in.spared) return;  // an empty piece does not travel
  batch.divisor = divisor_of(call, in);
  if (in.kind == StepKind::encode) return add_encoding(batch, call, in, piece);
  if (in.encodes >= 0) return add_recoding(batch, call, in, piece);
  if (in.row != InRow::no) return add_wide(call, in, piece);
  if (in.kind == StepKind::decode_reduce) return add_addition(batch, call, in, piece);
  if (in.kind == StepKind::decode) return batch.decodings.push_back({piece, source, target});
  if (in.kind == StepKind::reduce && in.coded)
    return call.device.add_coded(piece, source, target, call.stream);
  if (in.kind == StepKind::reduce)
    return batch.folds.push_back(fold_sources(call, in, {target, source}, {0, in.bytes}));
  if (target != source) batch.copies.push_back({target, source, in.bytes});
}

}  // namespace gpucomm
