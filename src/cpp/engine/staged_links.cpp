#include "engine/staged_links.h"

#include <algorithm>

#include "base/copy.h"
#include "codecs/coding.h"

namespace gpucomm {
namespace {

constexpr size_t kMemory = 32 << 20;   // of all slots together
constexpr size_t kMostSlot = 1 << 20;  // more delays who waits for the first
constexpr size_t kSlotGrain = 4096;

// Of a coded message whose header is there; the device may have failed to write it.
size_t told_bytes(const std::byte* header, size_t most) {
  return kCodedHeader + std::min<uint64_t>(coded_size(header), most - kCodedHeader);
}

}  // namespace

StagedLinks::StagedLinks(std::shared_ptr<Device> device, std::shared_ptr<Transport> transport, int rank,
                         int world)
    : device_(std::move(device)),
      transport_(std::move(transport)),
      rank_(rank),
      world_(world),
      slot_bytes_(std::clamp(kMemory / (2 * kSlots) / std::max(1, world - 1) / kSlotGrain * kSlotGrain,
                             kSlotGrain, kMostSlot)),
      peers_(world) {}

StagedLinks::Parcel StagedLinks::parcel(size_t message_bytes, size_t moved, bool coded) const {
  return {moved, std::min(slot_bytes_, message_bytes - moved), message_bytes, coded && message_bytes};
}

void StagedLinks::open(OwnPinned& slots, std::vector<OwnEvent>& events) {
  if (slots) return;
  slots = {device_, device_->allocate_pinned(kSlots * slot_bytes_)};
  for (uint64_t i = 0; i < kSlots; ++i) events.push_back(make_event(device_));
}

void StagedLinks::fill(int number, uint64_t tag, const Parcel& parcel, const std::byte* from, Stream stream) {
  Peer& peer = peers_[number];
  open(peer.out, peer.filled_there);
  const uint64_t at = peer.filled++ % kSlots;
  if (parcel.bytes) device_->copy(slot(peer.out, at), from + parcel.offset, parcel.bytes, stream);
  device_->record(peer.filled_there[at].get(), stream);
  peer.under_way[at] = {tag, parcel, {}};
}

bool StagedLinks::push() {
  bool moved = std::exchange(pulled_, false);
  for (int peer = 0; peer < world_; ++peer)
    while (peers_[peer].sent < peers_[peer].filled) {
      const size_t before = peers_[peer].under_way[peers_[peer].sent % kSlots].progress.moved;
      const bool sent = push(peer);
      moved |= sent || peers_[peer].under_way[peers_[peer].sent % kSlots].progress.moved > before;
      if (!sent) break;
    }
  return moved;
}

// One attempt to send the next parcel. Of a coded message only what its header says: nothing may be left.
bool StagedLinks::push(int number) {
  Peer& peer = peers_[number];
  Filled& next = peer.under_way[peer.sent % kSlots];
  if (!device_->done(peer.filled_there[peer.sent % kSlots].get())) {
    late_ = true;
    return false;
  }
  const std::byte* const data = slot(peer.out, peer.sent);
  if (next.parcel.coded && !next.parcel.offset) peer.out_bytes = told_bytes(data, next.parcel.message_bytes);
  const size_t all = next.parcel.coded ? peer.out_bytes : next.parcel.message_bytes;
  const size_t bytes = std::min(next.parcel.bytes, all - std::min(all, next.parcel.offset));
  const bool travels = bytes || !next.parcel.offset;
  if (travels && !transport_->send(number, next.tag, data, bytes, next.progress)) return false;
  ++peer.sent;
  return true;
}

bool StagedLinks::all_sent() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.sent == p.filled; });
}

// Once the device has read what the slot held before.
bool StagedLinks::may_come(int number) {
  Peer& peer = peers_[number];
  open(peer.in, peer.read);
  if (!device_->done(peer.read[peer.taken % kSlots].get())) {
    late_ = true;
    return false;
  }
  return true;
}

bool StagedLinks::lacks(int number, const Parcel& parcel) const {
  const Peer& peer = peers_[number];
  if (!peer.begun) return true;
  if (!parcel.coded) return peer.arrived < parcel.bytes;
  if (!parcel.offset && peer.arrived < kCodedHeader) return true;
  const size_t all = parcel.offset ? peer.in_bytes : told_bytes(data(number), parcel.message_bytes);
  return peer.arrived < std::min(parcel.bytes, all - std::min(all, parcel.offset));
}

bool StagedLinks::take(int number, const Parcel& parcel, const Chunk& chunk) {
  Peer& peer = peers_[number];
  const size_t bytes = chunk.bytes, room = parcel.bytes - peer.arrived;
  if (bytes > room)
    fail(ErrorKind::mismatch, "a message of rank ", number, " to rank ", rank_, " of ", world_,
         " is damaged: ", bytes, " bytes more where ", room, " can be");
  std::byte* const to = slot(peer.in, peer.taken) + peer.arrived;
  if (!transport_->take(number, chunk, to, copy_bytes)) return false;
  peer.arrived += bytes, peer.begun = pulled_ = true;
  return true;
}

void StagedLinks::came(int number, const Parcel& parcel) {
  Peer& peer = peers_[number];
  if (parcel.coded && !parcel.offset) peer.in_bytes = told_bytes(data(number), parcel.message_bytes);
  peer.last = parcel.offset + parcel.bytes >= (parcel.coded ? peer.in_bytes : parcel.message_bytes);
}

void StagedLinks::give_back(int number, Stream stream) {
  Peer& peer = peers_[number];
  device_->record(peer.read[peer.taken % kSlots].get(), stream);
  ++peer.taken;
  peer.arrived = 0, peer.begun = false;
}

}  // namespace gpucomm
