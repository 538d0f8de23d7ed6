#include "engine/communicator.h"

#include <sys/mman.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/float_mode.h"
#include "engine/progress.h"
#include "engine/staging.h"
#include "reduce/scale.h"

namespace gpucomm {
namespace {

// Ranks of other nodes have cores of their own, unless these nodes are emulated.
int ranks_here(const Transport& transport, const std::vector<int>& nodes, int rank) {
  if (transport.emulates()) return static_cast<int>(nodes.size());
  return static_cast<int>(std::count(nodes.begin(), nodes.end(), nodes[rank]));
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Transport> transport, std::shared_ptr<Transport> messages,
                           std::string transport_name, int rank, std::vector<int> nodes, uint64_t identity,
                           Seconds timeout)
    : Drivable(transport, ranks_here(*transport, nodes, rank)),
      fate_(transport_, rank, static_cast<int>(nodes.size())),
      messages_(std::move(messages), fate_, ranks_here(*transport_, nodes, rank)),
      transport_name_(std::move(transport_name)),
      identity_(identity),
      nodes_(std::move(nodes)),
      rank_(rank),
      world_(static_cast<int>(nodes_.size())),
      timeout_(timeout),
      programs_(nodes_, rank, transport_->attaches()) {}

Communicator::~Communicator() {
  close();
  Progress::instance().forget(*this);
  Progress::instance().forget(messages_);
}

std::shared_ptr<Work> Communicator::enqueue(const Arrays& arrays, Seconds timeout) {
  std::shared_ptr<Work> work =
      spare_ && spare_.use_count() == 1 ? std::move(spare_) : std::make_shared<Work>();
  work->arrays = arrays, work->timeout = timeout;
  work->stream = arrays.stream;
  work->finished.reset();
  work->capture = arrays.capture;
  work->sequence = ++sequence_, work->label = Label::current();
  refusals_.take_back(*transport_, sequence_);
  work->program.reset(), work->tuning.reset(), work->turn = {};
  work->meter = Meter::current();
  work->started = false, work->error.reset(), work->deadline.reset();
  work->done.store(false, std::memory_order_relaxed);
  queue_.push_back(work);
  began();
  return work;
}

std::shared_ptr<Work> Communicator::submit(const Shape& shape, const Arrays& arrays, Seconds timeout) {
  std::lock_guard lock(mutex_);
  fate_.check_open();  // close() ends what is in the queue under this lock
  return submitted(shape, arrays, timeout);
}

// With the lock held.
std::shared_ptr<Work> Communicator::submitted(const Shape& shape, const Arrays& arrays, Seconds timeout) {
  const auto& tuning = programs_.tuning(shape);
  const Tuning::Turn turn = tuning ? tuning->issue() : Tuning::Turn{};
  if (turn.settles) agree(tuning, turn.settles, timeout);
  // What is learnt from the calls under way may still change this one: it is settled at its start, which
  // comes in the same order on all ranks.
  const bool now = !tuning || queue_.empty();
  auto program = now ? programs_.get(turn.place) : nullptr;
  auto work = enqueue(arrays, timeout);
  work->program = std::move(program), work->turn = turn;
  if (tuning && (!now || turn.round)) work->shape = shape, work->tuning = tuning;
  return work;
}

// A call of our own, before the next one.
void Communicator::agree(const std::shared_ptr<Tuning>& tuning, int settles, Seconds timeout) {
  Shape shape = largest_of(settles);
  shape.purpose = Purpose::agreement;
  auto program = programs_.get(shape, nullptr, 0);
  auto work = enqueue({}, timeout);
  work->program = std::move(program), work->tuning = tuning, work->turn.settles = settles;
}

void Communicator::run(const Shape& shape, const Arrays& arrays, Seconds timeout) {
  await(submit(shape, arrays, timeout));
}

void Communicator::await(std::shared_ptr<Work> work) {
  wait(*work, {});
  std::lock_guard lock(mutex_);
  if (!spare_) spare_ = std::move(work);
}

bool Communicator::attempt(const Shape& shape, const Arrays& arrays, Seconds timeout,
                           std::shared_ptr<Work>& begun) {
  constexpr size_t kShort = 128 << 10;  // of all ranks
  constexpr int kTurns = 100;           // about a microsecond
  if (arrays.device || shape.count * size_of(shape.dtype) * world_ > kShort) return false;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !queue_.empty()) return false;
  fate_.check_open();
  begun = submitted(shape, arrays, timeout);
  const std::atomic<bool>& done = begun->done;
  const int turns = transport_->common() || !has_cores() ? 1 : kTurns;
  for (int idle = 0; idle < turns && !done.load(std::memory_order_relaxed);)
    idle = advance_front() ? 0 : idle + 1;
  if (!done.load(std::memory_order_relaxed) || begun->error) return false;
  if (!spare_) spare_ = std::move(begun);
  return true;
}

std::shared_ptr<Work> Communicator::start(const Shape& shape, const Arrays& arrays, Seconds timeout) {
  Progress::instance().prepare();
  auto work = submit(shape, arrays, timeout);
  drive_once();  // the first messages leave at once
  if (busy()) Progress::instance().add(*this);
  return work;
}

bool Communicator::drive_once() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && advance_front();
}

// With the lock held.
bool Communicator::advance_front() {
  if (queue_.empty()) return false;
  Work& work = *queue_.front();
  const StandardFloats floats;
  try {
    if (!work.started) begin(work);
    bool moved = false;
    if (under_way(work, moved)) return moved;
    fate_.check_read_in_place(*transport_);
    if (work.program->only_sends) check_unheard(work);
    transport_->complete(work.sequence);
    if (work.arrays.staging && !work.arrays.device)
      stage_out_on_host(*work.program, work.arrays, scratch_.get());
    if (work.tuning) learn(work);
    count(work);
    finish_front({});
  } catch (const std::exception& error) {
    fault(fate_.error_of(error));
  }
  return true;
}

// Moves it on.
bool Communicator::under_way(Work& work, bool& moved) {
  if (work.arrays.device) return under_way_on_device(work, moved);
  if (work.meets && !met(work, moved)) return true;
  moved = work.execution.advance();
  return !work.execution.done() || !transport_->flush(kEverybody);
}

void Communicator::begin(Work& work) {
  fate_.check_poison();
  if (!work.program) work.program = programs_.get(work.shape, work.tuning.get(), work.turn.place);
  if (work.program->shape.purpose == Purpose::agreement) {
    work.times = work.tuning->times(work.turn.settles);
    auto* times = reinterpret_cast<std::byte*>(work.times.data());
    work.arrays = {times, times};
  }
  work.started = true;
  if (work.meter) work.sent_before = transport_->counters().bytes_sent;
  if (work.arrays.device) return begin_on_device(work);
  grow_scratch(scratch_of(*work.program, work.arrays));
  if (work.turn.round) work.begun = Clock::now();
  if (work.arrays.staging) {
    stage_in_on_host(*work.program, work.arrays, scratch_.get());
    work.arrays = staged_arrays(*work.program, work.arrays, scratch_.get());
  }
  work.execution.start(*work.program, *transport_, work.arrays, scratch_.get(), record_of(work));
  const Shape& shape = work.program->shape;
  // Of reduce_scatter no rank works in place.
  if (shape.op == Op::premul_sum && shape.collective != Collective::reduce_scatter)
    world_ > 1 ? meet(work) : multiply(work);
  transport_->announce(work.execution.record());
}

// Whatever the others do, a mismatch must leave x as it is.
void Communicator::meet(Work& work) {
  if (!meeting_) meeting_.emplace(meeting_shape(), nodes_, rank_);
  meeting_->start(*transport_, {}, record_of(work));
  work.meets = true;
}

bool Communicator::met(Work& work, bool& moved) {
  moved = meeting_->advance();
  if (!meeting_->ended()) return false;
  work.meets = false;
  multiply(work);
  return true;
}

void Communicator::multiply(const Work& work) {
  const auto& [arrays, shape] = std::tie(work.arrays, work.program->shape);
  if (arrays.factor) scale(shape.dtype, arrays.output, arrays.input, shape.count, *arrays.factor);
}

void Communicator::learn(Work& work) {
  const Shape& shape = work.program->shape;
  if (shape.purpose == Purpose::agreement)
    work.tuning->settle(std::move(work.times));
  else if (work.turn.round)
    work.tuning->record(work.turn, Seconds(Clock::now() - work.begun).count(), bytes_known(shape));
}

void Communicator::count(const Work& work) {
  if (work.meter) *work.meter += sent_in(work);
  if (work.arrays.device) return count_on_device(work);
  encodes_ += work.execution.encodes(), decodes_ += work.execution.decodes();
}

// Once for all calls, on huge pages where the kernel gives them: first touch costs more than the call.
void Communicator::grow_scratch(size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  if (bytes <= scratch_bytes_) return;
  const size_t unit = bytes < kHugePage ? 64 : kHugePage, size = round_up(bytes, unit);
  scratch_ = allocate_aligned(unit, size);
  scratch_bytes_ = scratch_ ? size : 0;
  if (!scratch_) fail(ErrorKind::unavailable, "no memory for ", size, " bytes of scratch", fate_.where());
  if (unit == kHugePage) madvise(scratch_.get(), size, MADV_HUGEPAGE);
}

void Communicator::finish_front(const std::optional<Error>& error) {
  auto work = std::move(queue_.front());
  queue_.pop_front();
  finish(*work, error);
}

Communicator::Stats Communicator::stats() const {
  Transport::Counters traffic = transport_->counters();
  traffic += messages_.counters();
  std::lock_guard lock(mutex_);
  traffic += device_traffic_;
  return {traffic, sequence_, device_calls_, encodes_, decodes_, on_device_ ? on_device_->enqueuing_s() : 0};
}

void Communicator::set_links(const Links& links) {
  std::lock_guard lock(mutex_);
  programs_.set_links(links);
  links_known_.store(true, std::memory_order_release);
}

void Communicator::freeze() {
  std::lock_guard lock(mutex_);
  programs_.freeze(!links_known_);
  links_known_.store(true, std::memory_order_release);
}

}  // namespace gpucomm
