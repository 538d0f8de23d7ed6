#include "engine/device_steps.h"

#include "codecs/coding.h"

namespace gpucomm {
namespace {

size_t count_of(const DeviceCall& call, const Instruction& in) {
  return in.bytes / size_of(call.program.shape.dtype);
}

CodedPiece piece_of(const DeviceCall& call, const Instruction& in) {
  return {call.program.shape.codec, call.program.shape.dtype, count_of(call, in)};
}

}  // namespace

int divisor_of(const DeviceCall& call, const Instruction& in) {
  return call.program.shape.op == Op::mean && in.final ? call.program.world : 1;
}

Decoding decoding_of(const DeviceCall& call, const Instruction& in) {
  return {piece_of(call, in), call.coded_source(in), call.target(in)};
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
static void encode(const DeviceCall& call, const Instruction& in, const CodedPiece& piece) {
  std::byte* const slot = call.coded_target(in);
  call.device.encode(piece, call.source(in), slot, call.stream);
  if (!piece.codec->traits().lossy) return;
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

// As Execution::operand.
static const std::byte* operand(const DeviceCall& call, const Instruction& in) {
  return in.operand < 0 ? call.target(in) : call.source(call.program.instructions[in.operand]);
}

static void decode_onto(const DeviceCall& call, const Instruction& in, const CodedPiece& piece, int divisor) {
  const std::byte* const own = operand(call, in);
  if (own != call.target(in)) call.device.copy(call.target(in), own, in.bytes, call.stream);
  call.device.decode(piece, call.coded_source(in), call.target(in), true, divisor, call.stream);
}

// One step after the other where it must be told what is lost.
static void recode(const DeviceCall& call, const Instruction& in, const CodedPiece& piece) {
  const Instruction& after = call.program.instructions[in.encodes];
  if (!call.error && !call.lost.parts)
    return call.device.decode_add_encode(piece, call.coded_source(in), operand(call, in),
                                         call.coded_target(after), call.stream);
  decode_onto(call, in, piece, 1);
  encode(call, after, piece);
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

void enqueue_local(const DeviceCall& call, const Instruction& in) {
  const CodedPiece piece = piece_of(call, in);
  const std::byte* const source = call.coded_source(in);
  std::byte* const target = call.target(in);
  if (!in.bytes || in.spared) return;  // an empty piece does not travel
  if (in.kind == StepKind::encode) return encode(call, in, piece);
  if (in.encodes >= 0) return recode(call, in, piece);
  if (in.row != InRow::no) return add_wide(call, in, piece);
  if (in.kind == StepKind::decode_reduce) return decode_onto(call, in, piece, divisor_of(call, in));
  if (in.kind == StepKind::decode)
    return call.device.decode(piece, source, target, false, divisor_of(call, in), call.stream);
  if (in.kind == StepKind::reduce && in.coded)
    return call.device.add_coded(piece, source, target, call.stream);
  if (in.kind == StepKind::reduce)
    return call.device.reduce(fold_sources(call, in, {target, source}, {0, in.bytes}), call.stream);
  if (target != source) call.device.copy(target, source, in.bytes, call.stream);
}

}  // namespace gpucomm
