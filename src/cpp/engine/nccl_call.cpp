#include "engine/nccl_call.h"

#include <algorithm>

#include "engine/device_steps.h"
#include "plans/rounds.h"

namespace gpucomm {
namespace {

constexpr size_t kUnit = 256;  // as a device allocates
size_t padded(size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

std::vector<int> place(const Program& program, const std::vector<int>& nodes) {
  const Shape& shape = program.shape;
  PlanRequest request{shape.collective, program.world,  program.rank, shape.root,
                      shape.segments,   shape.in_place, nodes,        adds_coded(shape)};
  const Plan own = build_plan(shape.algorithm, request);
  // The ranks do not know of each other whether they work in place.
  request.in_place = shape.out_counts.empty();
  const std::vector<MessageRounds> rounds = find_rounds(build_plans(shape.algorithm, request));
  return place_steps(own, rounds[program.rank]);
}

bool travels(StepKind kind) {
  return kind == StepKind::send || kind == StepKind::recv || kind == StepKind::recv_reduce;
}

class NcclCall {
 public:
  NcclCall(const Grouped& grouped, DeviceCall call, std::byte* landing)
      : grouped_(grouped), call_(std::move(call)), landing_(landing) {}

  void run(NcclCommunicator& communicator, const Deadline& deadline) {
    for (const int index : grouped_.before) enqueue_local(call_, at(index));
    for (const Grouped::Round& round : grouped_.rounds) {
      messages_.clear();
      for (const int index : round.messages) add_messages(index);
      if (!messages_.empty()) communicator.exchange(messages_, call_.stream, deadline);
      for (const int index : round.after) follow(index);
    }
  }

 private:
  const Instruction& at(int index) const { return call_.program.instructions[index]; }

  std::byte* landing(int index, size_t k) const {
    return landing_ + grouped_.landing[index] + k * padded(at(index).bytes);
  }

  void add_messages(int index) {
    const Instruction& in = at(index);
    const size_t bytes = call_.message_bytes(in);
    if (in.kind == StepKind::send) messages_.push_back({true, in.peers[0], call_.source(in), bytes});
    if (in.kind == StepKind::recv) messages_.push_back({false, in.peers[0], call_.target(in), bytes});
    if (in.kind == StepKind::recv_reduce)
      for (size_t k = 0; k < in.peers.size(); ++k)
        messages_.push_back({false, in.peers[k], landing(index, k), bytes});
  }

  void follow(int index) {
    const Instruction& in = at(index);
    if (in.kind != StepKind::recv_reduce) return enqueue_local(call_, in);
    std::vector<const std::byte*> arrived;
    for (size_t k = 0; k < in.peers.size(); ++k) arrived.push_back(landing(index, k));
    enqueue_fold(call_, in, std::move(arrived));
  }

  const Grouped& grouped_;
  DeviceCall call_;
  std::byte* landing_;
  std::vector<NcclMessage> messages_;
};

}  // namespace

Grouped group(const Program& program, const std::vector<int>& nodes) {
  Grouped grouped;
  grouped.landing_begin = padded(program.scratch_bytes);
  grouped.landing.resize(program.instructions.size());
  const std::vector<int> placed = place(program, nodes);
  int last = -1;
  for (const int round : placed) last = std::max(last, round);
  std::vector<size_t> landed(last + 1);
  grouped.rounds.resize(landed.size());
  for (size_t i = 0; i < placed.size(); ++i) {
    const Instruction& in = program.instructions[i];
    if (!in.bytes) continue;
    if (placed[i] < 0) {
      grouped.before.push_back(i);
      continue;
    }
    Grouped::Round& round = grouped.rounds[placed[i]];
    if (travels(in.kind)) round.messages.push_back(i);
    if (in.kind == StepKind::recv_reduce || !travels(in.kind)) round.after.push_back(i);
    if (in.kind != StepKind::recv_reduce) continue;
    grouped.landing[i] = landed[placed[i]];
    landed[placed[i]] += padded(in.bytes) * in.peers.size();
  }
  const size_t most = landed.empty() ? 0 : *std::max_element(landed.begin(), landed.end());
  grouped.scratch_bytes = grouped.landing_begin + most;
  return grouped;
}

void enqueue(const Program& program, const Grouped& grouped, const Arrays& arrays, std::byte* scratch,
             NcclCommunicator& communicator, Device& device, Stream stream, const Deadline& deadline) {
  const Shape& shape = program.shape;
  if (arrays.error || arrays.lost_sq)
    fail(ErrorKind::unavailable, "what a codec loses is told of calls on host arrays only");
  const std::string refused = shape.codec ? device.refuses(*shape.codec, shape.dtype) : "";
  if (!refused.empty()) fail(ErrorKind::unavailable, refused);
  if (communicator.rank() != program.rank || communicator.world() != program.world)
    fail(ErrorKind::invalid_argument, "a program of rank ", program.rank, " of ", program.world,
         " does not fit an NCCL communicator of rank ", communicator.rank(), " of ", communicator.world());
  NcclCall(grouped, {program, spaces_of(program, arrays, scratch), device, stream},
           scratch + grouped.landing_begin)
      .run(communicator, deadline);
}

}  // namespace gpucomm
