// A libnccl.so.2 of the tests' own: ranks are threads of this process, arrays are host memory. What a group
// holds moves once both ends have come, while their ranks ask for errors, as in NCCL without blocking.
// VERSION, NO_SEND and NO_SPLIT make other releases; the functions fake_... make ranks fail and hang.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#ifndef VERSION
#define VERSION 22703
#endif
#define API extern "C" __attribute__((visibility("default"))) int

namespace {

enum { kSuccess = 0, kInvalidUsage = 5, kInProgress = 7 };
struct UniqueId {
  char internal[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

struct Comm;
struct Work {
  char kind;  // 's'end, 'r'eceive; of all ranks: 'a'll_reduce, red'u'ce, 'b'roadcast, 'g'ather, s'c'atter,
              // s'p'lit
  const char* in;
  char* out;
  size_t count;
  int type, op, peer;  // peer: also the root, the color
  int key = 0;
  Comm** made = nullptr;
};
struct World {
  std::vector<Comm*> comms;
  size_t came = 0;
};
struct Comm {
  World* world;
  int rank;
  std::deque<Work> queue = {};
  int fault = kSuccess;
};

std::mutex mutex;
std::map<std::string, World> worlds;
std::map<int, int> failing, failing_later;
std::set<int> hanging;
std::string calls;
void (*idle)(void* stream) = nullptr;
thread_local int depth = 0;
thread_local std::vector<std::pair<Comm*, Work>> grouped;

size_t size_of(int type) { return std::vector<size_t>{1, 1, 4, 4, 8, 8, 2, 4, 8, 2}[type]; }
bool together(const Work& work) { return !strchr("sr", work.kind); }

template <class T>
void fold(const std::vector<Work>& all, size_t begin, const Work& mine, char* out) {
  for (size_t i = 0; i < mine.count; ++i) {
    auto at = [&](size_t r) { return reinterpret_cast<const T*>(all[r].in)[begin + i]; };
    T value = at(0);
    for (size_t r = 1; r < all.size(); ++r)
      value = mine.op == 1   ? value * at(r)
              : mine.op == 2 ? std::max(value, at(r))
              : mine.op == 3 ? std::min(value, at(r))
                             : value + at(r);
    reinterpret_cast<T*>(out)[i] = mine.op == 4 ? value / static_cast<T>(all.size()) : value;
  }
}

// Of float32, int32 and uint8: more the tests do not reduce.
void fold_any(const std::vector<Work>& all, size_t begin, const Work& mine, char* out) {
  if (mine.type == 7) return fold<float>(all, begin, mine, out);
  if (mine.type == 2) return fold<int32_t>(all, begin, mine, out);
  fold<uint8_t>(all, begin, mine, out);
}

std::string result_of(const std::vector<Work>& all, size_t rank) {
  const Work& mine = all[rank];
  const size_t bytes = mine.count * size_of(mine.type);
  if (mine.kind == 'b') return std::string(all[mine.peer].in, bytes);
  std::string out;
  if (mine.kind == 'g') {
    for (const Work& work : all) out.append(work.in, bytes);
    return out;
  }
  out.resize(bytes);
  fold_any(all, mine.kind == 'c' ? rank * mine.count : 0, mine, out.data());
  return out;
}

void split(const std::vector<Work>& all) {
  std::map<int, std::vector<std::pair<int, size_t>>> parts;
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].peer >= 0) parts[all[r].peer].push_back({all[r].key, r});
  for (auto& [color, members] : parts) {
    World* part = new World{std::vector<Comm*>(members.size()), members.size()};
    std::sort(members.begin(), members.end());
    for (size_t i = 0; i < members.size(); ++i)
      *all[members[i].second].made = part->comms[i] = new Comm{part, static_cast<int>(i)};
  }
}

// What all ranks do is done when it heads all queues.
bool meet_all(World& world) {
  std::vector<Work> all;
  for (Comm* comm : world.comms) {
    if (!comm || hanging.count(comm->rank) || comm->queue.empty() || !together(comm->queue[0])) return false;
    all.push_back(comm->queue[0]);
  }
  std::vector<std::string> results(all.size());
  for (size_t r = 0; all[0].kind != 'p' && r < all.size(); ++r) results[r] = result_of(all, r);
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].kind != 'u' || all[r].peer == static_cast<int>(r))
      std::copy(results[r].begin(), results[r].end(), all[r].out);
  if (all[0].kind == 'p') split(all);
  for (Comm* comm : world.comms) comm->queue.pop_front();
  return true;
}

auto first(Comm& comm, char kind, int peer) {
  return std::find_if(comm.queue.begin(), comm.queue.end(),
                      [&](const Work& work) { return work.kind == kind && work.peer == peer; });
}

bool meet(Comm& from, Comm& to) {
  const auto sent = first(from, 's', to.rank), received = first(to, 'r', from.rank);
  if (sent == from.queue.end() || received == to.queue.end()) return false;
  if (sent->count != received->count) from.fault = to.fault = kInvalidUsage;
  memcpy(received->out, sent->in, std::min(sent->count, received->count));
  from.queue.erase(sent), to.queue.erase(received);
  return true;
}

int state(Comm& comm) {
  if (failing.count(comm.rank)) return failing[comm.rank];
  World& world = *comm.world;
  if (hanging.count(comm.rank) || world.came < world.comms.size()) return kInProgress;
  for (bool moved = true; moved;) {
    moved = meet_all(world);
    for (Comm* from : world.comms)
      for (Comm* to : world.comms)
        while (from && to && !hanging.count(from->rank) && !hanging.count(to->rank) && meet(*from, *to))
          moved = true;
  }
  if (comm.fault || !comm.queue.empty()) return comm.fault ? comm.fault : kInProgress;
  if (failing_later.count(comm.rank)) failing[comm.rank] = failing_later[comm.rank];
  return kSuccess;
}

// What the stream holds is done before anything of NCCL's begins.
int add(const char* name, Comm* comm, Work work, void* stream) {
  if (idle && stream) idle(stream);
  std::lock_guard lock(mutex);
  calls += std::string(name) + " ";
  if (depth)
    grouped.push_back({comm, work});
  else
    comm->queue.push_back(work);
  return depth ? kSuccess : kInProgress;
}

const char* bytes(const void* p) { return static_cast<const char*>(p); }
char* bytes(void* p) { return static_cast<char*>(p); }

}  // namespace

API fake_set_idle(void (*function)(void*)) { return idle = function, 0; }
API fake_fail(int rank, int code) { return failing[rank] = code, 0; }
// Once it has said that all is well.
API fake_fail_later(int rank, int code) { return failing_later[rank] = code, 0; }
API fake_hang(int rank) { return hanging.insert(rank), 0; }
API fake_reset() {
  return failing.clear(), failing_later.clear(), hanging.clear(), calls.clear(), idle = nullptr, 0;
}
extern "C" __attribute__((visibility("default"))) const char* fake_calls() { return calls.c_str(); }

API ncclGetVersion(int* version) { return *version = VERSION, 0; }
API ncclGetUniqueId(UniqueId* id) {
  static int made = 0;
  std::lock_guard lock(mutex);
  memset(id->internal, 0, sizeof id->internal);
  snprintf(id->internal + 100, 28, "world %d", ++made);  // all 128 bytes must be carried
  return 0;
}
API ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config) {
  std::lock_guard lock(mutex);
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidUsage;
  World& world = worlds[id.internal + 100];
  world.comms.resize(size);
  world.comms[rank] = *comm = new Comm{&world, rank};
  world.came += !hanging.count(rank);
  return kInProgress;
}
API ncclCommGetAsyncError(Comm* comm, int* code) {
  std::lock_guard lock(mutex);
  return *code = state(*comm), 0;
}
API ncclCommFinalize(Comm*) { return kInProgress; }
API ncclCommDestroy(Comm* comm) {
  std::lock_guard lock(mutex);
  comm->world->comms[comm->rank] = nullptr;
  return delete comm, 0;
}
API ncclCommAbort(Comm* comm) {
  {
    std::lock_guard lock(mutex);
    calls += "ncclCommAbort ";
  }
  return ncclCommDestroy(comm);
}
API ncclCommCount(Comm* comm, int* count) { return *count = static_cast<int>(comm->world->comms.size()), 0; }
API ncclCommUserRank(Comm* comm, int* rank) { return *rank = comm->rank, 0; }
extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int code) {
  return code == 6 ? "remote process exited or there was a network error" : "internal error";
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(Comm*) {
  return "the last word";
}
API ncclGroupStart() { return ++depth, 0; }
API ncclGroupEnd() {
  std::lock_guard lock(mutex);
  if (--depth) return 0;
  calls += "ncclGroupEnd ";
  for (auto& [comm, work] : grouped) comm->queue.push_back(work);
  grouped.clear();
  return kInProgress;
}
#ifndef NO_SEND
API ncclSend(const void* in, size_t n, int type, int peer, Comm* c, void* stream) {
  return add("ncclSend", c, {'s', bytes(in), nullptr, n * size_of(type), type, 0, peer}, stream);
}
#endif
API ncclRecv(void* out, size_t n, int type, int peer, Comm* c, void* stream) {
  return add("ncclRecv", c, {'r', nullptr, bytes(out), n * size_of(type), type, 0, peer}, stream);
}
API ncclAllReduce(const void* in, void* out, size_t n, int type, int op, Comm* c, void* stream) {
  return add("ncclAllReduce", c, {'a', bytes(in), bytes(out), n, type, op, 0}, stream);
}
API ncclReduce(const void* in, void* out, size_t n, int type, int op, int root, Comm* c, void* stream) {
  return add("ncclReduce", c, {'u', bytes(in), bytes(out), n, type, op, root}, stream);
}
API ncclBroadcast(const void* in, void* out, size_t n, int type, int root, Comm* c, void* stream) {
  return add("ncclBroadcast", c, {'b', bytes(in), bytes(out), n, type, 0, root}, stream);
}
API ncclAllGather(const void* in, void* out, size_t n, int type, Comm* c, void* stream) {
  return add("ncclAllGather", c, {'g', bytes(in), bytes(out), n, type, 0, 0}, stream);
}
API ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, Comm* c, void* stream) {
  return add("ncclReduceScatter", c, {'c', bytes(in), bytes(out), n, type, op, 0}, stream);
}
#ifndef NO_SPLIT
API ncclCommSplit(Comm* comm, int color, int key, Comm** made, Config*) {
  return add("ncclCommSplit", comm, {'p', nullptr, nullptr, 0, 0, 0, color, key, made}, nullptr);
}
#endif
