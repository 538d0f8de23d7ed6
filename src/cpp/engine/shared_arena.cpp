#include "engine/shared_arena.h"

#include <algorithm>

#include "base/aligned.h"
#include "base/env.h"
#include "base/error.h"
#include "engine/handle_text.h"

namespace gpucomm {
namespace {

constexpr int kSlots = 4;                 // of chunks under way from a rank to another
constexpr size_t kLeastChunk = 64 << 10;  // less costs more to announce than to move
constexpr size_t kMostChunk = 4 << 20;    // more delays who reads the first
constexpr size_t kMapGrain = 2 << 20;     // CUDA maps so much at a time

size_t chunk_for(int peers, const std::string& device) {
  const size_t whole = static_cast<size_t>(env().arena_mib) << 20;
  const size_t bytes = whole / kSlots / peers / 4096 * 4096;
  if (bytes < kLeastChunk)
    fail(ErrorKind::unavailable, "an arena of ", env().arena_mib, " MiB on ", device,
         " (GPUCOMM_ARENA_MIB) is too small for ", kSlots, " slots of ", kLeastChunk >> 10,
         " KiB for each of ", peers, " other ranks");
  return std::min(bytes, kMostChunk);
}

}  // namespace

void tell_nothing_open(Transport& transport, int rank) {
  if (DeviceWords* words = transport.device_words()) words->closed[rank].store(1, std::memory_order_release);
}

SharedArena::SharedArena(std::shared_ptr<Device> device, std::shared_ptr<Transport> transport, int rank,
                         int world)
    : device_(std::move(device)),
      transport_(std::move(transport)),
      words_(*transport_->device_words()),
      rank_(rank),
      world_(world),
      chunk_bytes_(chunk_for(world - 1, device_->name())),
      peers_(world) {
  if (const std::string why = device_->shares(); !why.empty())
    fail(ErrorKind::unavailable, "device arrays between processes: ", why,
         "; GPUCOMM_DEVICE_TRANSPORT=staged takes them through host memory (rank ", rank_, " of ", world_,
         ")");
  memory_ = {device_, allocate((world - 1) * kSlots * chunk_bytes_)};
  for (int p = 0; p < world_; ++p) {
    if (p == rank_) continue;
    for (int slot = 0; slot < kSlots; ++slot)
      for (auto* events : {&peers_[p].filled, &peers_[p].read})
        events->push_back({device_, device_->make_shared_event()});
    tell(p);
  }
}

std::byte* SharedArena::allocate(size_t bytes) const try {
  return device_->allocate_shared(round_up(bytes, kMapGrain));
} catch (const Error& error) {
  throw Error(error.kind, concat(error.what(), ", for an arena: GPUCOMM_ARENA_MIB=", env().arena_mib,
                                 " (rank ", rank_, " of ", world_, ")"));
}

std::byte* SharedArena::slots_to(int peer) const {
  return memory_.get() + (peer - (peer > rank_)) * kSlots * chunk_bytes_;
}

// What a peer needs to read this rank's chunks, and to hear when this rank has read its own.
void SharedArena::tell(int number) {
  const Peer& peer = peers_[number];
  HandleText text;
  text.put(kind_of(*device_)), text.put(chunk_bytes_), text.put(slots_to(number) - memory_.get());
  text.put(device_->export_memory(memory_.get()));
  for (const auto* events : {&peer.filled, &peer.read})
    for (const OwnEvent& event : *events) text.put(device_->export_event(event.get()));
  text.tell(words_.pairs[rank_][number]);
  transport_->wake(number);
}

bool SharedArena::meet() {
  bool all = true;
  for (int p = 0; p < world_; ++p) all &= p == rank_ || meet(p);
  return all;
}

bool SharedArena::meet(int number) {
  if (peers_[number].slots) return true;
  const std::string told = told_handles(words_.pairs[number][rank_]);
  if (!told.empty()) open(number, told);
  return !told.empty();
}

void SharedArena::open(int number, const std::string& told) {
  Peer& peer = peers_[number];
  HandleReader reader(told);
  if (const std::string kind = reader.text(); kind != kind_of(*device_))
    fail(ErrorKind::mismatch, "rank ", rank_, " of ", world_, " calls with arrays on ", device_->name(),
         ", rank ", number, " with arrays on a ", kind, ": all ranks need devices of one kind");
  const uint64_t chunk_bytes = reader.number(), offset = reader.number();
  if (chunk_bytes != chunk_bytes_)
    fail(ErrorKind::mismatch, "chunks on devices are ", chunk_bytes_, " bytes on rank ", rank_, " of ",
         world_, " and ", chunk_bytes, " on rank ", number, ": give all ranks the same GPUCOMM_ARENA_MIB");
  peer.memory = {device_, device_->open_memory(reader.text())};
  peer.slots = peer.memory.get() + offset;
  for (auto* events : {&peer.filled_there, &peer.read_there})
    for (int slot = 0; slot < kSlots; ++slot)
      events->push_back({device_, device_->open_event(reader.text())});
}

bool SharedArena::has_room(int peer) const {
  return peers_[peer].sent < to(peer).read.load(std::memory_order_acquire) + kSlots;
}

std::byte* SharedArena::room(int number, Stream stream) {
  Peer& peer = peers_[number];
  const size_t slot = peer.sent % kSlots;
  if (peer.sent >= kSlots) device_->wait(stream, peer.read_there[slot].get());
  if (slot < peer.kept.size()) device_->wait(stream, peer.kept[slot].get());
  return slots_to(number) + slot * chunk_bytes_;
}

void SharedArena::tell_filled(int number, Stream stream) {
  Peer& peer = peers_[number];
  device_->record(peer.filled[peer.sent % kSlots].get(), stream);
  words_.pairs[rank_][number].filled.store(++peer.sent, std::memory_order_release);
  transport_->wake(number);
}

void SharedArena::fill(int number, const std::byte* from, size_t bytes, Stream stream) {
  device_->copy(room(number, stream), from, bytes, stream);
  tell_filled(number, stream);
}

void SharedArena::keep(int number, Stream stream) {
  Peer& peer = peers_[number];
  while (peer.kept.size() < kSlots) peer.kept.push_back(make_event(device_));
  device_->record(peer.kept[(peer.sent - 1) % kSlots].get(), stream);
}

bool SharedArena::has_chunk(int peer) const {
  return peers_[peer].taken < from(peer).filled.load(std::memory_order_acquire);
}

const std::byte* SharedArena::chunk(int number, Stream stream) {
  Peer& peer = peers_[number];
  const int slot = static_cast<int>(peer.taken % kSlots);
  device_->wait(stream, peer.filled_there[slot].get());
  return peer.slots + slot * chunk_bytes_;
}

void SharedArena::give_back(int number, Stream stream) {
  Peer& peer = peers_[number];
  device_->record(peer.read[peer.taken % kSlots].get(), stream);
  words_.pairs[number][rank_].read.store(++peer.taken, std::memory_order_release);
  transport_->wake(number);
}

bool SharedArena::all_taken() const {
  for (int p = 0; p < world_; ++p)
    if (reads(p) && to(p).read.load(std::memory_order_acquire) < peers_[p].sent) return false;
  return true;
}

bool SharedArena::all_read() const {
  for (int p = 0; p < world_; ++p) {
    const Peer& peer = peers_[p];
    for (size_t slot = 0; reads(p) && slot < std::min<size_t>(peer.sent, kSlots); ++slot)
      if (!device_->done(peer.read_there[slot].get())) return false;
  }
  return true;
}

bool SharedArena::reads(int peer) const { return peers_[peer].sent && transport_->gone(peer).empty(); }

bool SharedArena::has_ended(int peer) const {
  const std::string why = transport_->gone(peer);
  return !why.empty() && why != kHasClosed;
}

void SharedArena::close() {
  for (Peer& peer : peers_) peer.filled_there.clear(), peer.read_there.clear(), peer.memory = {};
  tell_nothing_open(*transport_, rank_);
}

bool SharedArena::closed_by_all() const {
  for (int peer = 0; peer < world_; ++peer)
    if (peer != rank_ && !words_.closed[peer].load(std::memory_order_acquire) && !has_ended(peer))
      return false;
  return true;
}

}  // namespace gpucomm
