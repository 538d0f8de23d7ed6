#include "engine/nccl_messages.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gpucomm {
namespace {

// With the half second of the collectives' communicator abort() returns within one.
constexpr std::chrono::milliseconds kMessagesAfterFault{200};

// A message's kernel keeps its thread blocks, about one for each multiprocessor, until the other end's runs:
// on devices full of such that wait none would begin. So messages with all others at once take half a large
// one. A power of two, which NCCL rounds up to.
int most_blocks(int world) {
  constexpr unsigned kEachWay = 32;
  return static_cast<int>(std::bit_floor(std::max(1U, kEachWay / static_cast<unsigned>(world - 1))));
}

}  // namespace

NcclMessages::~NcclMessages() { fault(); }

Stream NcclMessages::stream_for(const Message& m) {
  const Stream stream = streams_.of(m, [](DeviceShare&) {});
  pairs_.try_emplace({m.peer, m.sending});
  return stream;
}

void NcclMessages::need_library() const {
  if (!source_.library)
    fail(ErrorKind::unavailable, "these ranks' messages of device arrays go over NCCL: ", source_.missing,
         "; GPUCOMM_DEVICE_TRANSPORT=staged takes them through host memory", " (rank ", rank_, " of ", world_,
         ")");
}

void NcclMessages::offer(Message& m) {
  Pair& pair = pair_of(m);
  if (!pair.named) {
    need_library();
    pair.id = source_.library->unique_id(), pair.named = m.number;
  }
  if (pair.named == m.number) m.note.assign(pair.id.internal, sizeof pair.id.internal);
}

bool NcclMessages::send(Message& m, Stream stream) {
  return transport_->told(m.peer) >= m.number && give(m, stream);
}

bool NcclMessages::receive(Message& m, Stream stream) {
  Pair& pair = pair_of(m);
  if (pair.met < m.number) {
    need_library();
    if (!m.note.empty()) {
      GPUCOMM_CHECK(m.note.size() == sizeof pair.id.internal);
      std::memcpy(pair.id.internal, m.note.data(), m.note.size());
    }
    transport_->tell(m.peer, pair.met = m.number);
  }
  return give(m, stream);
}

// Once both ends are there.
bool NcclMessages::give(Message& m, Stream stream) {
  if (!m.bytes()) return true;
  Pair& pair = pair_of(m);
  if (!pair.communicator) open(pair, m);
  if (!settled(pair, m.peer)) return false;
  if (pair.given == m.number) return true;
  const int other = m.sending ? 1 : 0;
  pair.communicator->exchange({{m.sending, other, m.data, m.bytes()}}, stream);
  pair.given = m.number, m.enqueued = m.bytes();
  return settled(pair, m.peer);
}

// In which the sender is the first.
void NcclMessages::open(Pair& pair, const Message& m) {
  pair.communicator = std::make_unique<NcclCommunicator>(
      source_.library, m.device, pair.id, m.sending ? 0 : 1, 2,
      concat("rank ", rank_, " of ", world_, m.sending ? ", sending to rank " : ", receiving from rank ",
             m.peer),
      most_blocks(world_));
}

Silent NcclMessages::silent(const Message& m) {
  return pairs_.at({m.peer, m.sending}).communicator ? Silent::others : Silent::nothing;
}

// Whether NCCL is open, or has enqueued what it has.
bool NcclMessages::settled(Pair& pair, int peer) {
  if (pair.communicator->settled()) return true;
  watch_.check_peers({peer});
  return false;
}

std::vector<int> NcclMessages::open_peers() const {
  std::vector<int> peers;
  for (const auto& [place, pair] : pairs_)
    if (pair.communicator) peers.push_back(place.first);
  return peers;
}

// `done`: what was waited for has ended; no success is reported before NCCL says so.
void NcclMessages::check(bool done, std::optional<Seconds> waited) {
  for (auto& [place, pair] : pairs_)
    if (pair.communicator) pair.communicator->check();
  if (done) return;
  watch_.check_peers(open_peers());
  if (waited) watch_.time_out(streams_->held.device->name(), *waited);
}

// What is through and enqueued ends well, unless a message that was under way is left.
void NcclMessages::leave() {
  if (withdrawn_) fault();
}

// What is enqueued uses arrays that nobody may keep after this, and may wait for a rank that is gone.
void NcclMessages::fault() {
  if (ended_.exchange(true)) return;
  for (auto& [place, pair] : pairs_)
    if (pair.communicator) pair.communicator->abort("the communicator has ended", {});
  if (streams_) streams_->ends(kMessagesAfterFault);
}

// Only after its own part: what a peer has not taken yet is NCCL's to keep until it is closed. All begin
// before any waits: another rank may close them in another order.
std::optional<Error> NcclMessages::settle() {
  if (ended_ || !watched()) return {};
  std::optional<Error> undone;
  if (!streams_->ends(watch_.another(), undone)) return fault(), undone;
  ended_ = closed_ = true;
  const auto of_each = [&](auto call) {
    for (auto& [place, pair] : pairs_) try {
        if (pair.communicator) call(*pair.communicator);
      } catch (const Error&) {  // it is aborted then
      }
  };
  of_each([](NcclCommunicator& communicator) { communicator.begin_to_close(); });
  const Deadline deadline(std::chrono::duration<double>(kNcclFarewell).count());
  of_each([&](NcclCommunicator& communicator) { communicator.close(deadline); });
  return {};
}

}  // namespace gpucomm
