// Kernels with races and without them, by name: whether the thread sanitizer tells these apart. And some that
// no GPU runs as they are meant.
#include <functional>
#include <map>
#include <string>

#include "emulation.h"

namespace {

constexpr unsigned kThreads = 64;
int words[4 * kThreads];

// Each thread reads what another one has written into the memory of the thread block.
template <class Between>
void exchange(Between between) {
  __shared__ int own[kThreads];
  own[threadIdx.x] = 1;
  between();
  words[(2 * blockIdx.y + blockIdx.x) * kThreads + threadIdx.x] = own[threadIdx.x ^ 1];
}

void one_thread(unsigned place) {
  if (threadIdx.x == 0) words[place] = 1;
}

// What was in the memory of the thread block before.
void leave_behind(int value) {
  __shared__ int own[kThreads];
  emulated::unwritten(&own, sizeof own);
  if (own[threadIdx.x] == value) emulated::give_up("what an earlier thread block has left");
  own[threadIdx.x] = value;
}

const std::map<std::string, std::function<void()>> kernels{
    {"a barrier", [] { exchange([] { __syncthreads(); }); }},
    {"a barrier of the warp", [] { exchange([] { __syncwarp(); }); }},
    {"a shuffle", [] { exchange([] { __shfl_xor_sync(~0u, 1, 1); }); }},
    {"nothing", [] { exchange([] {}); }},
    {"rows apart", [] { one_thread(2 * blockIdx.y + blockIdx.x); }},
    {"rows that meet", [] { one_thread(blockIdx.x); }},
    {"what is left behind", [] { leave_behind(7); }},
    {"a part of the warp", [] { __shfl_xor_sync(1u, 1, 1); }},
    {"one that has left",
     [] {
       if (threadIdx.x) __syncwarp();
     }},
    {"other places", [] { threadIdx.x % 2 ? __syncwarp() : void(__shfl_xor_sync(~0u, 1, 1)); }},
    {"too many threads", [] { emulated::bound(kThreads / 2); }},
    {"atomic", [] { atomicOr(reinterpret_cast<uint32_t*>(words), 1u); }},
};

}  // namespace

int main(int, char** arguments) { emulated::run_blocks(dim3(2, 2), kThreads, kernels.at(arguments[1])); }
