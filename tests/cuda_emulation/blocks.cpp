// Thread blocks, whose threads take turns where they wait for each other.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <utility>
#include <vector>

#include "cuda/program.h"
#include "emulation.h"
#include "races.h"

namespace emulated {
namespace {

constexpr unsigned kLanes = gpucomm::cuda::kLanes, kMostThreads = 1024;
constexpr size_t kStack = 128 << 10;
constexpr size_t kMostShared = 48 << 10;  // that a kernel need not ask for

struct Barrier {
  unsigned members = 0, arrived = 0, turn = 0, meaning = 0;
  Order orders[2];  // by turns: some leave it late, when others have come to the next one
};

class Block {
 public:
  Block() {
    void* memory = mmap(nullptr, kMostThreads * kStack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) give_up("no memory for the stacks of a thread block");
    stacks_ = static_cast<char*>(memory);
  }
  ~Block() {
    for (Fiber& fiber : fibers_) fiber.tracked.end();
    munmap(stacks_, kMostThreads * kStack);
  }

  void run(unsigned threads, const Place& place, const std::function<void()>& kernel) {
    if (threads % kLanes || threads > kMostThreads) give_up("a thread block of no whole warps, or too large");
    kernel_ = &kernel, place_ = place;
    all_ = {.members = threads}, shared_.clear(), shared_bytes_ = 0;
    warps_.assign(threads / kLanes, {.members = kLanes});
    while (fibers_.size() < threads) fibers_.emplace_back(stacks_ + fibers_.size() * kStack);
    for (unsigned i = 0; i < threads; ++i) fibers_[i].done = false;
    begins_.give();
    // Where the threads go one after the other they must not tell: from another one on in each block, and in
    // every second one backwards.
    const unsigned first = (place.block.x * 7 + place.block.y * 3) % threads;
    const unsigned next = place.block.x % 2 ? threads - 1 : 1;
    for (unsigned left = threads; left;) {
      moved_ = false;
      for (unsigned k = 0; k < threads; ++k) {
        current_ = (first + k * next) % threads;
        if (fibers_[current_].done) continue;
        place_.thread = {current_, 0, 0};
        resume(fibers_[current_]);
        if (fibers_[current_].done) --left, moved_ = true;
      }
      if (!moved_) give_up("threads of a block wait for others that do not come");
    }
    ends_.take();
  }

  const Place& place() const { return place_; }
  void sync_block() { sync(all_); }
  void sync_warp() { sync(warps_[current_ / kLanes]); }
  uint64_t shuffle_xor(uint64_t value, unsigned step) {
    const unsigned thread = current_;
    fibers_[thread].shown = value;
    wait(warps_[thread / kLanes], step);
    const uint64_t other = fibers_[thread ^ step].shown;
    wait(warps_[thread / kLanes], step);
    return other;
  }

  unsigned threads() const { return all_.members; }
  // By the first thread that comes there: what an earlier block has left is not this one's.
  void unwritten(void* shared, size_t bytes) {
    if (std::find(shared_.begin(), shared_.end(), shared) != shared_.end()) return;
    shared_.push_back(shared), shared_bytes_ += bytes;
    if (shared_bytes_ > kMostShared) give_up("more shared memory than a thread block has");
    for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(shared)[i] = -1;
  }

 private:
  // A stack, which runs kernel after kernel. Switched by jumps: swapcontext() calls the system each time.
  struct Fiber {
    explicit Fiber(char* stack) {
      getcontext(&start);
      start.uc_stack.ss_sp = stack, start.uc_stack.ss_size = kStack;
      makecontext(&start, &Block::serve, 0);
    }
    ucontext_t start;
    jmp_buf at;
    Tracked tracked = Tracked::made();
    bool started = false, done = false;
    uint64_t shown = 0;
  };

  void resume(Fiber& fiber) {
    if (_setjmp(scheduler_)) return;
    fiber.tracked.resume();
    if (std::exchange(fiber.started, true)) _longjmp(fiber.at, 1);
    setcontext(&fiber.start);
  }
  void yield() {
    if (_setjmp(fibers_[current_].at)) return;
    tracked_.resume();
    _longjmp(scheduler_, 1);
  }
  static void serve();

  void sync(Barrier& barrier) {
    Order& order = barrier.orders[barrier.turn % 2];
    order.give();
    wait(barrier);
    order.take();
  }
  // Threads that wait with another meaning are at another place: they were never to meet.
  void wait(Barrier& barrier, unsigned meaning = 0) {
    if (!barrier.arrived) barrier.meaning = meaning;
    if (barrier.meaning != meaning) give_up("threads of a warp wait for others at different places");
    if (++barrier.arrived == barrier.members) {
      barrier.arrived = 0, ++barrier.turn, moved_ = true;
      return;
    }
    for (const unsigned turn = barrier.turn; barrier.turn == turn;) yield();
  }

  char* stacks_;
  Tracked tracked_ = Tracked::here();
  Order begins_, ends_;
  const std::function<void()>* kernel_ = nullptr;
  Place place_{};
  jmp_buf scheduler_;
  std::deque<Fiber> fibers_;
  std::vector<Barrier> warps_;
  Barrier all_;
  std::vector<void*> shared_;  // of the block at hand
  size_t shared_bytes_ = 0;
  unsigned current_ = 0;
  bool moved_ = false;
};

Block& block() {
  static thread_local Block one;
  return one;
}

void Block::serve() {
  for (Block& own = block();; own.yield()) {
    own.begins_.take();
    (*own.kernel_)();
    own.ends_.give();
    own.fibers_[own.current_].done = true;
  }
}

}  // namespace

void give_up(const char* why) {
  std::fprintf(stderr, "emulated CUDA: %s\n", why);
  std::abort();
}

const Place& place() { return block().place(); }
void sync_block() { block().sync_block(); }
void sync_warp() { block().sync_warp(); }
uint64_t shuffle_xor(unsigned mask, uint64_t value, unsigned step) {
  if (mask != ~0u) give_up("a shuffle of a part of the warp");
  return block().shuffle_xor(value, step);
}
void bound(unsigned threads) {
  if (block().threads() > threads) give_up("a kernel is launched with more threads than it was compiled for");
}
void unwritten(void* shared, size_t bytes) { block().unwritten(shared, bytes); }

// In an order that is another one each time.
void run_blocks(dim3 grid, unsigned threads, const std::function<void()>& kernel) {
  static thread_local unsigned turn = 0;
  const unsigned all = grid.x * grid.y;
  const bool backwards = ++turn % 2;
  at_once([&, gpu = working_on](unsigned own, unsigned runners) {
    working_on = gpu;
    for (unsigned i = 0; i < all; ++i) {
      const unsigned at = backwards ? all - 1 - i : i, x = at % grid.x, y = at / grid.x;
      if ((x + y) % runners == own) block().run(threads, {{}, {x, y, 0}, grid}, kernel);  // neighbours apart
    }
  });
}

}  // namespace emulated
