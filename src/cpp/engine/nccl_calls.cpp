#include "engine/nccl_calls.h"

#include <utility>

#include "engine/nccl_native.h"
#include "engine/staging.h"

namespace gpucomm {
namespace {

// abort() returns within a second, of which NCCL's may take a half.
constexpr std::chrono::milliseconds kCallsAfterFault{300};

}  // namespace

NcclCalls::NcclCalls(std::shared_ptr<Transport> transport, NcclSource source, std::vector<int> nodes,
                     int rank)
    : transport_(std::move(transport)),
      source_(std::move(source)),
      nodes_(std::move(nodes)),
      rank_(rank),
      watch_(*transport_, rank, static_cast<int>(nodes_.size()), kNcclEnqueued),
      meeting_(meeting_shape(), nodes_, rank) {}

NcclCalls::~NcclCalls() {
  fault();
  if (share_) outlive(std::move(share_));
}

bool NcclCalls::native() const { return program().shape.algorithm == kNative; }

void NcclCalls::begin(const StreamCall& call) {
  if (communicator_) communicator_->check();
  call_ = call, phase_ = Phase::meeting;
  transport_->announce(call.record);
  meeting_.start(*transport_, {}, call.record);
}

// Moves a call on that the ranks settle something by; true: it has ended.
static bool settled(SideCall& call) {
  call.advance();
  return call.ended();
}

bool NcclCalls::advance() {
  bool moved = false;
  while (phase_ != Phase::done && step()) moved = true;
  return moved;
}

// Whether the next phase has begun.
bool NcclCalls::step() {
  switch (phase_) {
    case Phase::meeting:
      if (!settled(meeting_)) return false;
      return start_fitting(), true;
    case Phase::fitting:
      if (!settled(*fitting_)) return false;
      return check_fitting(), open(), true;
    case Phase::naming:
      if (!settled(*naming_)) return false;
      communicator_ = std::make_unique<NcclCommunicator>(source_.library, call_.arrays.device, id_, rank_,
                                                         static_cast<int>(nodes_.size()));
      return start_running(), true;
    default:
      return enqueue_next();
  }
}

// Of an all_to_all with uneven counts the ranks of a pair must expect the same of each other.
void NcclCalls::start_fitting() {
  const Shape& shape = program().shape;
  if (shape.out_counts.empty()) return open();
  told_.assign(shape.counts.begin(), shape.counts.end());
  heard_.resize(told_.size());
  if (!fitting_)
    fitting_.emplace(side_shape(Collective::all_to_all, Dtype::int64, told_.size(), "direct"), nodes_, rank_);
  auto bytes = [](auto& list) { return reinterpret_cast<std::byte*>(list.data()); };
  fitting_->start(*transport_, {bytes(told_), bytes(heard_)}, call_.record.sequence);
  phase_ = Phase::fitting;
}

void NcclCalls::check_fitting() const {
  for (size_t peer = 0; peer < heard_.size(); ++peer)
    if (static_cast<size_t>(heard_[peer]) != program().shape.out_counts[peer])
      fail(ErrorKind::mismatch,
           unfitting_counts(program(), static_cast<int>(peer), call_.record, heard_[peer]));
}

// Of this rank's device what the call needs, and of NCCL where it is not open yet.
void NcclCalls::open() {
  prepare();
  if (communicator_ || (nodes_.size() == 1 && !native())) return start_running();
  if (!source_.library)
    fail(ErrorKind::unavailable, "these ranks' calls on device arrays go over NCCL: ", source_.missing,
         where());
  if (rank_ == 0) id_ = source_.library->unique_id();
  auto* const bytes = reinterpret_cast<std::byte*>(id_.internal);
  naming_.emplace(side_shape(Collective::broadcast, Dtype::uint8, sizeof id_.internal, "binomial_tree"),
                  nodes_, rank_);
  naming_->start(*transport_, {bytes, bytes}, call_.record.sequence);
  phase_ = Phase::naming;
}

void NcclCalls::prepare() {
  const std::shared_ptr<Device>& device = call_.arrays.device;
  if (!share_) share_ = std::make_unique<DeviceShare>(device);
  if (share_->held.device != device)
    fail(ErrorKind::unavailable, "rank ", rank_, " of ", nodes_.size(), " calls ", describe(call_.record),
         " on ", device->name(), ", its earlier calls were on ", share_->held.device->name(),
         ": over NCCL all calls of a communicator are on one device");
  if (program().shape.codec) share_->held.expect_faults();
}

const Grouped& NcclCalls::grouped() {
  if (const Grouped* known = grouped_.find(call_.program)) return *known;
  Grouped grouped = compile_grouped(program().shape, nodes_, rank_);
  const size_t instructions = grouped.program.instructions.size();
  return grouped_.add(call_.program, std::move(grouped), instructions);
}

// After what the caller's stream holds, and after this rank's former call.
void NcclCalls::start_running() {
  Device& device = *share_->held.device;
  const Stream hub = share_->hub.get();
  given_ = false;
  const Program& program = running();
  const Arrays& arrays = call_.arrays;
  std::byte* const scratch = share_->held.grow_scratch(scratch_of(program, arrays));
  const Spaces spaces = staged_spaces(program, arrays, scratch);
  if (!native()) {
    const Lost lost = lost_of(program, arrays, scratch);
    CodingFaults* const faults = share_->held.faults.get();
    running_.emplace(grouped(), DeviceCall{program, spaces, device, hub, arrays.error, lost, faults},
                     scratch);
  }
  device.wait(hub, came_of(arrays, share_->came));
  if (staged(arrays)) stage_in(program, arrays, scratch, hub);
  phase_ = Phase::running;
}

// Once NCCL has enqueued what it was given last, or all ranks are there.
bool NcclCalls::enqueue_next() {
  if (communicator_ && !communicator_->settled()) return false;
  if (running_) {
    if (!running_->advance(communicator_.get())) end();
  } else if (!std::exchange(given_, true)) {
    enqueue_native(program().shape, staged_arrays(program(), call_.arrays, share_->held.at_hand),
                   *communicator_, share_->hub.get());
  } else {
    end();
  }
  return true;
}

void NcclCalls::end() {
  if (staged(call_.arrays)) stage_out(running(), call_.arrays, share_->held.at_hand, share_->hub.get());
  share_->finish(call_.arrays);
  running_.reset(), call_.arrays = {};
  phase_ = Phase::done;
}

// `done`: what was waited for has ended; no success is reported before NCCL says so.
void NcclCalls::check(bool done, std::optional<Seconds> waited) {
  communicator_->check();
  if (done) return;
  watch_.check_everybody();
  if (waited) watch_.time_out(share_->held.device->name(), *waited);
}

void NcclCalls::leave() {
  if (phase_ != Phase::done) fault();
}

// What is enqueued uses arrays that nobody may keep after this, and may wait for a rank that is gone.
void NcclCalls::fault() {
  if (ended_.exchange(true)) return;
  running_.reset(), call_ = {}, phase_ = Phase::done;
  if (communicator_) communicator_->abort("the communicator has ended");
  if (share_) share_->ends(kCallsAfterFault);
}

// Only after its own part: what a peer has not taken yet is NCCL's to keep until it is closed.
std::optional<Error> NcclCalls::settle() {
  if (!communicator_ || ended_) return {};
  std::optional<Error> undone;
  if (!share_->ends(watch_.another(), undone)) return fault(), undone;
  ended_ = closed_ = true;
  try {
    communicator_->close(Deadline(std::chrono::duration<double>(kNcclFarewell).count()));
  } catch (const Error&) {  // it is aborted then
  }
  return {};
}

}  // namespace gpucomm
