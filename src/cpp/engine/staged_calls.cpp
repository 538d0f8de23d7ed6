#include "engine/staged_calls.h"

#include <utility>
#include <vector>

namespace gpucomm {

void StagedCalls::announce() {
  transport_->announce(call_.record);
  expected_.start(program(), *transport_, call_.record);
}

void StagedCalls::open(DeviceShare& share) {
  share.links = std::make_unique<StagedLinks>(share.held.device, transport_, rank_, world_);
  links_ = share.links.get();
}

bool StagedCalls::send(const Instruction& in, Lane& lane, const DeviceCall& call) {
  if (in.peers.empty()) return true;
  const size_t total = call.message_bytes(in);
  while (!lane.headed || lane.moved < total) {
    if (!links_->has_room(in.peers[0])) return false;
    const StagedLinks::Parcel parcel = links_->parcel(total, lane.moved, in.coded);
    links_->fill(in.peers[0], expected_.tag(in), parcel, call.source(in), call.stream);
    lane.moved += parcel.bytes, lane.headed = true;
  }
  return true;
}

bool StagedCalls::receive(const Instruction& in, Lane& lane, const DeviceCall& call) {
  if (in.peers.empty()) return true;
  for (bool last = false; !last;) {
    const StagedLinks::Parcel parcel = links_->parcel(call.message_bytes(in), lane.moved, in.coded);
    bool here = true;
    for (const int peer : in.peers)
      here &= links_->pull(peer, parcel, [&] { return expected_.next(peer, in); });
    if (!here) return false;
    last = links_->last(in.peers[0]);
    take(in, parcel, call);
    lane.moved += parcel.bytes;
  }
  return true;
}

// A fold reads what came where it lies.
void StagedCalls::take(const Instruction& in, const StagedLinks::Parcel& parcel, const DeviceCall& call) {
  std::vector<const std::byte*> arrived;
  for (const int peer : in.peers) arrived.push_back(links_->data(peer));
  const size_t bytes = links_->bytes(in.peers[0]);
  if (bytes && in.kind == StepKind::recv)
    call.device.copy(call.target(in) + parcel.offset, arrived[0], bytes, call.stream);
  else if (bytes)
    enqueue_fold(call, in, std::move(arrived), {parcel.offset, bytes});
  for (const int peer : in.peers) links_->give_back(peer, call.stream);
}

bool StagedCalls::host_done() {
  links_->push();
  return links_->all_sent() && transport_->flush(kEverybody);
}

}  // namespace gpucomm
