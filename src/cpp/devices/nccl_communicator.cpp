#include "devices/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/soon.h"
#include "devices/nccl_operations.h"

namespace gpucomm {
namespace {

using std::chrono::microseconds;

// What takes long takes naps that grow.
class Patience {
 public:
  void pause() {
    if (turns_++ < 200) return std::this_thread::yield();
    std::this_thread::sleep_for(nap_);
    nap_ = std::min(nap_ * 2, microseconds(1000));
  }

 private:
  int turns_ = 0;
  microseconds nap_{20};
};

bool lost(int result) { return result == nccl::kRemoteError || result == nccl::kSystemError; }

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Device> device,
                                   const nccl::UniqueId& id, int rank, int world, std::string who,
                                   int most_blocks)
    : library_(std::move(library)),
      device_(std::move(device)),
      calls_(library_->calls()),
      rank_(rank),
      world_(world),
      who_(std::move(who)) {
  if (world < 1 || rank < 0 || rank >= world)
    fail(ErrorKind::invalid_argument, "rank must be in [0, world), got ", rank, " of ", world);
  nccl::Config config;
  config.blocking = 0, config.maxCTAs = most_blocks;
  const int result = current([&] { return calls_.CommInitRankConfig(&comm_, world, id, rank, &config); });
  if (!comm_) broken("ncclCommInitRankConfig", result);
  begun("ncclCommInitRankConfig", result);
}

NcclCommunicator::NcclCommunicator(const NcclCommunicator& parent, nccl::Comm comm)
    : library_(parent.library_), device_(parent.device_), calls_(library_->calls()), comm_(comm) {
  if (const int result = calls_.CommUserRank(comm_, &rank_)) broken("ncclCommUserRank", result);
  if (const int result = calls_.CommCount(comm_, &world_)) broken("ncclCommCount", result);
}

NcclCommunicator::~NcclCommunicator() { abort("it was given up"); }

// NCCL takes the device that is current for that of a new communicator, and goes back to it after each call.
template <class Call>
int NcclCommunicator::current(Call call) const {
  int result = nccl::kSuccess;
  device_->with_current([&] { result = call(); });
  return result;
}

// NCCL's abort and destroy may themselves wait for what hangs: a thread of its own goes on with them then.
void NcclCommunicator::end(int (*call)(nccl::Comm), std::chrono::milliseconds patience) noexcept try {
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  std::thread([=, device = device_, comm = std::exchange(comm_, nullptr)] {
    try {
      device->with_current([&] { call(comm); });
    } catch (const Error&) {  // the device has failed
    }
    ended->store(true);
  }).detach();
  soon(patience, [&] { return ended->load(); });
} catch (const std::exception&) {  // no thread is to be had: the communicator is left behind
}

std::string NcclCommunicator::who() const {
  return who_.empty() ? concat("rank ", rank_, " of ", world_) : who_;
}

void NcclCommunicator::check_open() const {
  if (!comm_) fail(ErrorKind::closed, "the NCCL communicator of ", who(), " is closed: ", closed_because_);
}

int NcclCommunicator::state() const {
  int state = nccl::kInProgress;
  const int result = calls_.CommGetAsyncError(comm_, &state);
  return result ? result : state;
}

// NCCL works on in threads of its own.
void NcclCommunicator::begun(const char* what, int result) {
  under_way_ = what;
  if (result && result != nccl::kInProgress) broken(what, result);
}

bool NcclCommunicator::settled() {
  Lock lock(mutex_);
  check_open();
  const int result = state();
  if (result && result != nccl::kInProgress) broken(under_way_, result);
  return !result;
}

void NcclCommunicator::settle(const Deadline& deadline) {
  for (Patience patience; !settled(); patience.pause()) {
    if (!deadline.passed()) continue;
    Lock lock(mutex_);
    late(under_way_, deadline);
  }
}

void NcclCommunicator::broken(const char* what, int result) {
  const std::string text = concat(who(), ": ", what, " failed: ", library_->describe(result, comm_),
                                  ", says NCCL ", library_->version_text());
  abort_locked(text);
  throw Error(lost(result) ? ErrorKind::peer_lost : ErrorKind::unavailable, text);
}

// NCCL does not tell which ranks are missing.
void NcclCommunicator::late(const char* what, const Deadline& deadline) {
  const std::string text = concat(who(), " waited ", deadline.timeout_s(), " s for the others in ", what);
  abort_locked(text);
  throw Error(ErrorKind::timeout, text);
}

void NcclCommunicator::abort_locked(const std::string& why, std::chrono::milliseconds patience) noexcept {
  if (!comm_) return;
  closed_because_ = why;
  end(calls_.CommAbort, patience);
}

void NcclCommunicator::abort(const std::string& why, std::chrono::milliseconds patience) noexcept {
  Lock lock(mutex_);
  abort_locked(why, patience);
}

bool NcclCommunicator::closed() {
  Lock lock(mutex_);
  return !comm_;
}

template <class Enqueue>
void NcclCommunicator::call(const char* what, Enqueue enqueue) {
  Lock lock(mutex_);
  check_open();
  begun(what, current(enqueue));
}

void NcclCommunicator::exchange(const std::vector<NcclMessage>& messages, Stream stream) {
  call("an exchange of messages", [&] {
    int result = calls_.GroupStart();
    if (result) return result;
    for (const NcclMessage& m : messages) {
      if (result && result != nccl::kInProgress) break;
      result = m.sends ? calls_.Send(m.data, m.bytes, nccl::kUint8, m.peer, comm_, stream)
                       : calls_.Recv(m.data, m.bytes, nccl::kUint8, m.peer, comm_, stream);
    }
    const int ended = calls_.GroupEnd();  // a group that has begun must end
    return result && result != nccl::kInProgress ? result : ended;
  });
}

void NcclCommunicator::all_reduce(const std::byte* in, std::byte* out, size_t count, Dtype dtype, Op op,
                                  Stream stream) {
  const NcclOperation as = nccl_operation(dtype, op);
  call("ncclAllReduce", [&] { return calls_.AllReduce(in, out, count, as.type, as.op, comm_, stream); });
}

void NcclCommunicator::reduce(const std::byte* in, std::byte* out, size_t count, Dtype dtype, Op op, int root,
                              Stream stream) {
  const NcclOperation as = nccl_operation(dtype, op);
  call("ncclReduce", [&] { return calls_.Reduce(in, out, count, as.type, as.op, root, comm_, stream); });
}

void NcclCommunicator::reduce_scatter(const std::byte* in, std::byte* out, size_t count_each, Dtype dtype,
                                      Op op, Stream stream) {
  const NcclOperation as = nccl_operation(dtype, op);
  call("ncclReduceScatter",
       [&] { return calls_.ReduceScatter(in, out, count_each, as.type, as.op, comm_, stream); });
}

void NcclCommunicator::broadcast(const std::byte* in, std::byte* out, size_t bytes, int root, Stream stream) {
  call("ncclBroadcast", [&] { return calls_.Broadcast(in, out, bytes, nccl::kUint8, root, comm_, stream); });
}

void NcclCommunicator::all_gather(const std::byte* in, std::byte* out, size_t bytes_each, Stream stream) {
  call("ncclAllGather", [&] { return calls_.AllGather(in, out, bytes_each, nccl::kUint8, comm_, stream); });
}

void NcclCommunicator::check() {
  Lock lock(mutex_);
  check_open();
  const int result = state();
  if (result && result != nccl::kInProgress) broken("what it had enqueued", result);
}

void NcclCommunicator::wait(Event event, const Deadline& deadline) {
  for (Patience patience;; patience.pause()) {
    const bool done = device_->done(event);
    check();  // no success is reported before NCCL says so
    if (done) return;
    if (!deadline.passed()) continue;
    Lock lock(mutex_);
    late("what it had enqueued", deadline);
  }
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::split(int color, int key, const Deadline& deadline) {
  if (!calls_.CommSplit)
    fail(ErrorKind::unavailable, "NCCL ", library_->version_text(), " in ", library_->file(),
         " cannot split a communicator; 2.18 and newer can");
  auto made = std::make_unique<nccl::Comm>(nullptr);
  try {
    call("ncclCommSplit", [&] {
      return calls_.CommSplit(comm_, color < 0 ? nccl::kNoColor : color, key, made.get(), nullptr);
    });
    settle(deadline);
  } catch (const Error&) {
    static_cast<void>(made.release());  // NCCL may still write to it
    throw;
  }
  if (color < 0) return nullptr;
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(*this, *made));
}

void NcclCommunicator::begin_to_close() {
  Lock lock(mutex_);
  if (!comm_ || std::exchange(closing_, true)) return;
  begun("ncclCommFinalize", current([&] { return calls_.CommFinalize(comm_); }));
}

void NcclCommunicator::close(const Deadline& deadline) {
  begin_to_close();
  if (closed()) return;
  settle(deadline);
  Lock lock(mutex_);
  check_open();
  closed_because_ = "by its user";
  end(calls_.CommDestroy, kEnding);
}

}  // namespace gpucomm
