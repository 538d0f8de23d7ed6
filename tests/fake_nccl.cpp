// A libnccl.so.2 of the tests' own: ranks are threads or processes, arrays are host memory, and messages are
// files in the folder that the unique id names. As in NCCL without blocking, a call is first under way, then
// enqueued; what it does a stream of the host device does, later, and it waits there for the other ranks.
// VERSION makes another release, of which that is all; so do NO_SEND and NO_SPLIT. The functions fake_... make
// ranks fail and hang.
#define API extern "C" __attribute__((visibility("default"))) int
#ifdef VERSION
API ncclGetVersion(int* version) { return *version = VERSION, 0; }
#else
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };
constexpr int kTurns = 3;  // how often a call is found under way before it is enqueued
struct UniqueId {
  char internal[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking, cga, least_blocks, most_blocks;
};
using Stream = void*;
using Job = std::function<void()>;
using Clock = std::chrono::steady_clock;

// Never deleted: what a stream holds may come late.
struct Comm {
  std::string folder;
  int rank = 0, world = 1;
  int turns = 0;
  std::atomic<bool> ended{false};
  std::atomic<int> fault{kSuccess};
  std::map<std::string, int> numbers = {};    // of messages to and from each peer, of collectives
  std::function<bool()> waits_for = nullptr;  // what is under way ends when this says so
  Clock::time_point begun{};
  Job job = nullptr;  // ... and this is enqueued then
  Stream stream = nullptr;
};
struct Message {
  Comm* comm;
  bool sends;
  char* data;
  size_t bytes;
  int peer;
  Stream stream;
};

std::mutex mutex;  // guards all below
std::map<int, int> failing, failing_later;
std::set<int> hanging;
bool finalizes_together = false;
std::chrono::milliseconds least{0};  // how long what is begun is under way
std::string calls;
void (*enqueue)(Stream, void (*)(void*), void*) = nullptr;
thread_local int depth = 0;
thread_local std::vector<Message> grouped;

size_t size_of(int type) { return std::vector<size_t>{1, 1, 4, 4, 8, 8, 2, 4, 8, 2}[type]; }

// Whole or not there.
void put(const std::string& path, const void* data, size_t bytes) {
  const std::string draft = path + ".draft";
  std::ofstream(draft, std::ios::binary).write(static_cast<const char*>(data), bytes);
  std::rename(draft.c_str(), path.c_str());
}
bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
std::string get(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string data(static_cast<size_t>(file.tellg()), 0);
  file.seekg(0).read(data.data(), data.size());
  return data;
}

// On a stream: until it holds or the communicator ends; false: that.
template <class Condition>
bool until(const Comm& comm, Condition holds) {
  for (; !comm.ended; std::this_thread::sleep_for(std::chrono::microseconds(30)))
    if (holds()) return true;
  return false;  // whose arrays may be gone
}

void give(Comm& comm) {
  enqueue(
      comm.stream,
      [](void* argument) {
        (*static_cast<Job*>(argument))();
        delete static_cast<Job*>(argument);
      },
      new Job(std::exchange(comm.job, nullptr)));
}

// Enqueued by threads of NCCL's own, a little later.
int begin(Comm& comm, Stream stream, Job job) {
  comm.begun = Clock::now();
  comm.turns = kTurns, comm.stream = stream, comm.job = std::move(job);
  return kInProgress;
}

std::string number(Comm& comm, const std::string& kind) {
  return comm.folder + "/" + kind + "." + std::to_string(comm.numbers[kind]++);
}

struct Named {
  Message message;
  std::string path;
};

// All at once; a send ends when it is received.
void exchange(const std::vector<Named>& messages) {
  for (const auto& [m, path] : messages)
    if (m.sends && !m.comm->ended) put(path, m.data, m.bytes);
  for (const auto& [m, path] : messages) {
    if (m.sends || !until(*m.comm, [&] { return is_there(path); })) continue;
    const std::string found = get(path);
    if (found.size() != m.bytes) m.comm->fault = kInvalidUsage;
    memcpy(m.data, found.data(), std::min(found.size(), m.bytes));
    std::remove(path.c_str());
  }
  for (const auto& [m, path] : messages)
    if (m.sends) until(*m.comm, [&] { return !is_there(path); });
}

struct Reduction {
  size_t count;
  int type, op;
};

template <class T>
void fold(const std::vector<std::string>& all, size_t begin, const Reduction& how, char* out) {
  for (size_t i = 0; i < how.count; ++i) {
    auto at = [&](size_t r) { return reinterpret_cast<const T*>(all[r].data())[begin + i]; };
    T value = at(0);
    for (size_t r = 1; r < all.size(); ++r)
      value = how.op == 1   ? value * at(r)
              : how.op == 2 ? std::max(value, at(r))
              : how.op == 3 ? std::min(value, at(r))
                            : value + at(r);
    reinterpret_cast<T*>(out)[i] = how.op == 4 ? value / static_cast<T>(all.size()) : value;
  }
}

// Of float32, int32, int64 and uint8: more the tests do not reduce.
void fold_any(const std::vector<std::string>& all, size_t begin, const Reduction& how, char* out) {
  if (how.type == 7) return fold<float>(all, begin, how, out);
  if (how.type == 2) return fold<int32_t>(all, begin, how, out);
  if (how.type == 4) return fold<int64_t>(all, begin, how, out);
  fold<uint8_t>(all, begin, how, out);
}

// What all ranks give, once they have.
bool gather(Comm& comm, const std::string& path, const std::string& own, std::vector<std::string>& all) {
  put(path + "." + std::to_string(comm.rank), own.data(), own.size());
  for (int r = 0; r < comm.world; ++r) {
    const std::string theirs = path + "." + std::to_string(r);
    if (!until(comm, [&] { return is_there(theirs); })) return false;
    all.push_back(get(theirs));
  }
  return true;
}

// No call may be made while another is under way, nor after the end.
int usable(Comm* comm, const char* name) {
  calls += std::string(name) + " ";
  return comm->ended ? kInvalidArgument : comm->turns || comm->waits_for ? kInvalidUsage : kSuccess;
}

using Finish = std::function<void(const std::vector<std::string>&)>;
int together(const char* name, Comm* comm, const void* in, size_t bytes, Stream stream, Finish finish) {
  std::lock_guard lock(mutex);
  if (const int wrong = usable(comm, name)) return wrong;
  return begin(*comm, stream, [=, path = number(*comm, "all")] {
    std::vector<std::string> all;
    const char* const own = static_cast<const char*>(in);
    if (gather(*comm, path, {own, own + bytes}, all)) finish(all);
  });
}

int message(const char* name, Message m) {
  std::lock_guard lock(mutex);
  if (const int wrong = usable(m.comm, name)) return wrong;
  if (!depth) return kInvalidUsage;  // we always make groups
  grouped.push_back(m);
  return kSuccess;
}

int state(Comm& comm) {
  if (failing.count(comm.rank)) return failing[comm.rank];
  if (hanging.count(comm.rank) || comm.turns) return comm.turns -= comm.turns > 0, kInProgress;
  if (comm.waits_for && !comm.waits_for()) return kInProgress;
  if (comm.job && Clock::now() < comm.begun + least) return kInProgress;
  comm.waits_for = nullptr;
  if (comm.job) give(comm);
  if (comm.fault) return comm.fault;
  if (failing_later.count(comm.rank)) failing[comm.rank] = failing_later[comm.rank];
  return kSuccess;
}

void meet(Comm* comm, const char* name) {
  const std::string path = comm->folder + "/" + name;
  if (!hanging.count(comm->rank)) put(path + std::to_string(comm->rank), "", 0);
  comm->turns = kTurns;
  comm->waits_for = [=] {
    for (int r = 0; r < comm->world; ++r)
      if (!is_there(path + std::to_string(r))) return false;
    return true;
  };
}

// (color, key) of every rank.
bool split(Comm* parent, const std::string& path, Comm** made) {
  std::map<int, std::vector<std::pair<int, int>>> parts;
  int own = -1;
  for (int r = 0; r < parent->world; ++r) {
    if (!is_there(path + "." + std::to_string(r))) return false;
    int color = 0, key = 0;
    std::ifstream(path + "." + std::to_string(r)) >> color >> key;
    parts[color].push_back({key, r});
    if (r == parent->rank) own = color;
  }
  auto& part = parts[own];
  std::sort(part.begin(), part.end());
  const auto seat = std::find_if(part.begin(), part.end(), [&](auto& m) { return m.second == parent->rank; });
  Comm* comm = new Comm{path + ".of." + std::to_string(own), static_cast<int>(seat - part.begin()),
                        static_cast<int>(part.size())};
  std::filesystem::create_directories(comm->folder);
  if (own >= 0) *made = comm;
  return true;
}

}  // namespace

API fake_set_enqueue(void (*function)(Stream, void (*)(void*), void*)) { return enqueue = function, 0; }
API fake_fail(int rank, int code) {
  std::lock_guard lock(mutex);
  return failing[rank] = code, 0;
}
// Once it has said that all is well.
API fake_fail_later(int rank, int code) {
  std::lock_guard lock(mutex);
  return failing_later[rank] = code, 0;
}
API fake_hang(int rank) {
  std::lock_guard lock(mutex);
  return hanging.insert(rank), 0;
}
// From here on who finalizes waits for all ranks.
API fake_finalize_together() { return finalizes_together = true, 0; }
// What is begun is under way for so long at least.
API fake_pause(int ms) {
  std::lock_guard lock(mutex);
  return least = std::chrono::milliseconds(ms), 0;
}
API fake_reset() {
  std::lock_guard lock(mutex);
  return failing.clear(), failing_later.clear(), hanging.clear(), calls.clear(), least = {}, 0;
}
// A copy: a call that ends in another thread appends to what this one reads.
extern "C" __attribute__((visibility("default"))) const char* fake_calls() {
  thread_local std::string copy;
  std::lock_guard lock(mutex);
  return (copy = calls).c_str();
}

API ncclGetVersion(int* version) { return *version = 22703, 0; }
API ncclGetUniqueId(UniqueId* id) {
  const char* const told = getenv("FAKE_NCCL_FOLDER");  // whose it is to remove
  std::string folder = std::string(told ? told : "") + "/XXXXXX";
  if (!told || folder.size() >= 100 || !mkdtemp(folder.data())) return kInvalidUsage;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it takes its time in NCCL too
  memset(id->internal, 0, sizeof id->internal);
  strcpy(id->internal + 127 - folder.size(), folder.c_str());  // all 128 bytes must be carried
  return 0;
}
API ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config) {
  std::lock_guard lock(mutex);
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidUsage;
  calls += "maxCTAs=" + std::to_string(config->most_blocks) + " ";
  const char* const begin = std::find_if(id.internal, id.internal + 127, [](char c) { return c != 0; });
  meet(*comm = new Comm{begin, rank, size}, "came.");
  return kInProgress;
}
API ncclCommGetAsyncError(Comm* comm, int* code) {
  std::lock_guard lock(mutex);
  return *code = state(*comm), 0;
}
API ncclCommFinalize(Comm* comm) {
  std::lock_guard lock(mutex);
  if (const int wrong = usable(comm, "ncclCommFinalize")) return wrong;
  if (finalizes_together) return meet(comm, "left."), kInProgress;
  return comm->turns = kTurns, kInProgress;
}
API ncclCommDestroy(Comm* comm) { return comm->ended = true, 0; }
API ncclCommAbort(Comm* comm) {
  std::lock_guard lock(mutex);
  calls += "ncclCommAbort ";
  return comm->ended = true, 0;
}
API ncclCommCount(Comm* comm, int* count) { return *count = comm->world, 0; }
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
  if (grouped.empty()) return 0;
  std::vector<Named> messages;
  for (const Message& m : grouped) {
    const auto [from, to] = m.sends ? std::pair(m.comm->rank, m.peer) : std::pair(m.peer, m.comm->rank);
    messages.push_back({m, number(*m.comm, std::to_string(from) + "-" + std::to_string(to))});
  }
  grouped.clear();
  return begin(*messages[0].message.comm, messages[0].message.stream, [messages] { exchange(messages); });
}
#ifndef NO_SEND
API ncclSend(const void* in, size_t n, int type, int peer, Comm* c, Stream stream) {
  char* const data = static_cast<char*>(const_cast<void*>(in));
  return message("ncclSend", {c, true, data, n * size_of(type), peer, stream});
}
#endif
API ncclRecv(void* out, size_t n, int type, int peer, Comm* c, Stream stream) {
  return message("ncclRecv", {c, false, static_cast<char*>(out), n * size_of(type), peer, stream});
}
API ncclAllReduce(const void* in, void* out, size_t n, int type, int op, Comm* c, Stream stream) {
  return together("ncclAllReduce", c, in, n * size_of(type), stream,
                  [=](auto& all) { fold_any(all, 0, {n, type, op}, static_cast<char*>(out)); });
}
API ncclReduce(const void* in, void* out, size_t n, int type, int op, int root, Comm* c, Stream stream) {
  return together("ncclReduce", c, in, n * size_of(type), stream, [=](auto& all) {
    if (c->rank == root) fold_any(all, 0, {n, type, op}, static_cast<char*>(out));
  });
}
API ncclBroadcast(const void* in, void* out, size_t n, int type, int root, Comm* c, Stream stream) {
  return together("ncclBroadcast", c, in, c->rank == root ? n * size_of(type) : 0, stream,
                  [=](auto& all) { memcpy(out, all[root].data(), n * size_of(type)); });
}
API ncclAllGather(const void* in, void* out, size_t n, int type, Comm* c, Stream stream) {
  return together("ncclAllGather", c, in, n * size_of(type), stream, [=](auto& all) {
    for (size_t r = 0; r < all.size(); ++r)
      memcpy(static_cast<char*>(out) + r * n * size_of(type), all[r].data(), n * size_of(type));
  });
}
API ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, Comm* c, Stream stream) {
  return together("ncclReduceScatter", c, in, n * c->world * size_of(type), stream,
                  [=](auto& all) { fold_any(all, c->rank * n, {n, type, op}, static_cast<char*>(out)); });
}
#ifndef NO_SPLIT
API ncclCommSplit(Comm* comm, int color, int key, Comm** made, Config*) {
  std::lock_guard lock(mutex);
  if (const int wrong = usable(comm, "ncclCommSplit")) return wrong;
  const std::string path = number(*comm, "split"), mine = std::to_string(color) + " " + std::to_string(key);
  put(path + "." + std::to_string(comm->rank), mine.data(), mine.size());
  comm->turns = kTurns;
  comm->waits_for = [=] { return split(comm, path, made); };
  return kInProgress;
}
#endif
#endif
