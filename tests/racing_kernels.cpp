// Kernels with races and without them, by name: whether the thread sanitizer tells these apart.
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

const std::map<std::string, std::function<void()>> kernels{
    {"a barrier", [] { exchange([] { __syncthreads(); }); }},
    {"a barrier of the warp", [] { exchange([] { __syncwarp(); }); }},
    {"a shuffle", [] { exchange([] { __shfl_xor_sync(~0u, 1, 1); }); }},
    {"nothing", [] { exchange([] {}); }},
    {"rows apart", [] { one_thread(2 * blockIdx.y + blockIdx.x); }},
    {"rows that meet", [] { one_thread(blockIdx.x); }},
    {"atomic", [] { atomicOr(reinterpret_cast<uint32_t*>(words), 1u); }},
};

}  // namespace

int main(int, char** arguments) { emulated::run_blocks(dim3(2, 2), kThreads, kernels.at(arguments[1])); }
