// A communicator's calls on device arrays, which others enqueue.
#include "engine/communicator.h"
#include "engine/device_steps.h"

namespace gpucomm {

DeviceWish Communicator::device_wish() const {
  return gpucomm::device_wish(*transport_, transport_name_, rank_, world_);
}

void Communicator::check_enqueued(bool done, std::optional<Seconds> expired) {
  check_calls(done, expired);
  messages_.check_enqueued(done, expired);
}

void Communicator::check_calls(bool done, std::optional<Seconds> expired) {
  std::lock_guard lock(mutex_);
  if (!on_device_ || !on_device_->watched()) return;
  if (fate_.failed()) throw fate_.closed_error();
  try {
    if (!done) fate_.check_poison();
    on_device_->check(done, expired);
  } catch (const Error& error) {
    throw fault(error);
  }
}

void Communicator::check_coding() {
  std::lock_guard lock(mutex_);
  const std::optional<Error> error = coding_error();
  if (!error) return;
  if (fate_.closed()) throw fate_.closed_error();
  throw fault(*error);
}

std::optional<Error> Communicator::coding_error() const {
  const std::string what = on_device_ ? on_device_->coding_fault() : "";
  if (what.empty()) return {};
  return Error(ErrorKind::invalid_argument, concat(what, fate_.where()));
}

void Communicator::begin_on_device(Work& work) {
  if (!on_device_) on_device_ = open_device_calls(way_.value(), transport_, nccl_, nodes_, rank_);
  if (work.program->shape.codec) coded_on_device_.store(true, std::memory_order_relaxed);
  on_device_->begin({work.program, work.arrays, record_of(work)});
}

bool Communicator::under_way_on_device(Work& work, bool& moved) {
  moved = on_device_->advance();
  silent_.store(on_device_->silent(), std::memory_order_relaxed);
  if (!on_device_->done()) return true;
  work.finished = on_device_->finished();
  return false;
}

void Communicator::count_on_device(const Work& work) {
  const Traffic traffic = traffic_of(*work.program);
  ++device_calls_, encodes_ += traffic.encodes, decodes_ += traffic.decodes;
  if (way_ != DeviceWay::staged) device_traffic_ += traffic.counters;  // else the transport has counted
}

// Calls run one at a time, and messages between two ranks have a transport of their own.
uint64_t Communicator::sent_in(const Work& work) const {
  if (work.arrays.device && way_ != DeviceWay::staged) return traffic_of(*work.program).counters.bytes_sent;
  return transport_->counters().bytes_sent - work.sent_before;
}

}  // namespace gpucomm
