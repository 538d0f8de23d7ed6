// An MPI of the tests' own, as far as our wire calls it. All ranks are in one process, and a communicator is the
// number of its rank. What is sent arrives at once, but where a tag is held: that only when it is let go, out of
// the sender's memory. HANDLE makes it another MPI. The functions fake_... make calls fail and count.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#ifndef HANDLE
#define HANDLE int
#endif
#define API extern "C" __attribute__((visibility("default"))) int
using Handle = HANDLE;

namespace {

constexpr intptr_t kNull = 7;  // a request that is over
struct Transfer {
  intptr_t number;
  bool sends, matched;
  intptr_t from, to;
  int tag;
  std::byte* memory;
  size_t bytes;
  bool over = false, received = false, truncated = false;
  bool there = false;  // what is sent: in `copy`
  std::string copy = {};
};

std::mutex mutex;  // guards all below
std::list<Transfer> transfers;
std::map<std::string, std::pair<int, int>> failing;  // call -> code, and the peer to which, or -1
std::set<int> held;
std::set<const void*> slots;
intptr_t next = 100;
bool cancels = true;
int misused = 0;

intptr_t value(Handle handle) { return (intptr_t)handle; }

int code_of(const char* call, int peer = -1) {
  const auto found = failing.find(call);
  return found != failing.end() && (found->second.second < 0 || found->second.second == peer)
             ? found->second.first
             : 0;
}

// What was sent is copied where it is not held, and received in order.
void move() {
  for (Transfer& t : transfers)
    if (t.sends && !t.there && !held.count(t.tag)) {
      t.copy.assign(reinterpret_cast<const char*>(t.memory), t.bytes), t.there = true;
      if (!t.matched) t.over = true;
    }
  for (Transfer& r : transfers) {
    if (r.sends || r.over) continue;
    const auto sent = std::find_if(transfers.begin(), transfers.end(), [&](const Transfer& t) {
      return t.sends && !t.received && t.from == r.from && t.to == r.to && t.tag == r.tag;
    });
    if (sent == transfers.end() || !sent->there) continue;
    r.truncated = sent->bytes > r.bytes, r.over = true;
    std::memcpy(r.memory, sent->copy.data(), std::min(sent->bytes, r.bytes));
    if (sent->number == kNull) transfers.erase(sent);  // asked about already
    else sent->over = sent->received = true;
  }
}

int start(const char* call, Transfer t, int peer, Handle* request) {
  const std::lock_guard lock(mutex);
  if (const int code = code_of(call, peer)) return code;
  for (const Transfer& other : transfers)  // memory that is in use
    if (other.number != kNull)
      misused += t.memory < other.memory + other.bytes && other.memory < t.memory + t.bytes;
  t.number = next++;
  *request = (Handle)t.number;
  slots.insert(request);
  transfers.push_back(std::move(t));
  move();
  return 0;
}

std::list<Transfer>::iterator at(Handle handle) {
  const auto found = value(handle) == kNull ? transfers.end()
                                            : std::find_if(transfers.begin(), transfers.end(), [&](auto& t) {
                                                return t.number == value(handle);
                                              });
  misused += found == transfers.end();
  return found;
}

}  // namespace

API MPI_Isend(void* data, int bytes, Handle, int peer, int tag, Handle own, Handle* request) {
  return start("MPI_Isend", {0, true, false, value(own), peer, tag, (std::byte*)data, (size_t)bytes}, peer,
               request);
}

API MPI_Issend(void* data, int bytes, Handle, int peer, int tag, Handle own, Handle* request) {
  return start("MPI_Issend", {0, true, true, value(own), peer, tag, (std::byte*)data, (size_t)bytes}, peer,
               request);
}

API MPI_Irecv(void* data, int bytes, Handle, int peer, int tag, Handle own, Handle* request) {
  return start("MPI_Irecv", {0, false, false, peer, value(own), tag, (std::byte*)data, (size_t)bytes}, peer,
               request);
}

API MPI_Test(Handle* request, int* flag, void*) {
  const std::lock_guard lock(mutex);
  if (const int code = code_of("MPI_Test")) return code;
  const auto t = at(*request);
  *flag = t == transfers.end() || t->over;
  if (!*flag) return 0;
  *request = (Handle)kNull;
  if (t == transfers.end()) return 0;
  const bool truncated = t->truncated;
  if (t->sends && !t->received) t->number = kNull;  // nobody has received it yet
  else transfers.erase(t);
  return truncated ? 15 : 0;
}

API MPI_Cancel(Handle* request) {
  const std::lock_guard lock(mutex);
  if (const int code = code_of("MPI_Cancel")) return code;
  const auto t = at(*request);
  if (t == transfers.end()) return 1;
  if (cancels) t->over = true;
  return 0;
}

API MPI_Finalized(int* flag) { return *flag = 0; }

API MPI_Error_string(int code, char* text, int* length) {
  return *length = std::sprintf(text, "fault %d", code), 0;
}

API fake_fail(const char* call, int code, int peer) {
  const std::lock_guard lock(mutex);
  return failing[call] = {code, peer}, 0;
}

API fake_hold(int tag, int on) {
  const std::lock_guard lock(mutex);
  on ? (void)held.insert(tag) : (void)held.erase(tag);
  return move(), 0;
}

API fake_cancels(int on) { return cancels = on, 0; }
API fake_misused() { return misused; }
API fake_slots() { return static_cast<int>(slots.size()); }
API fake_open() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(
      std::count_if(transfers.begin(), transfers.end(), [](auto& t) { return t.number != kNull; }));
}
API fake_reset() {
  const std::lock_guard lock(mutex);
  transfers.clear(), failing.clear(), held.clear(), slots.clear();
  return cancels = true, misused = 0;
}
