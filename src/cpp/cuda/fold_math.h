// The fold of reduce/reduce.h as one thread of many does it: the same forms and operations as on the host, so
// the same bits. One text for device and host; tests run it on the host with threads counted by a loop.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "cuda/half_pairs.h"
#include "devices/device.h"

namespace gpucomm::cuda {

// The parameters of a kernel: pointers too, so that nothing is copied to the device before it.
template <int kMost>
struct FoldArgumentsOf {
  const std::byte* sources[kMost];
  std::byte* destinations[kMost];
  int source_count = 0;
  int destination_count = 0;
  int divisor = 1;
  size_t count = 0;  // elements
  size_t head = 0;   // of them before the first pack
  size_t packs = 0;  // of kPackBytes, at addresses that are multiples of it
};
using FoldArguments = FoldArgumentsOf<kMaxSources>;
inline constexpr size_t kPackBytes = 16;

// Moved by one instruction, and kept whole until its elements are needed: apart they take a register each.
struct alignas(kPackBytes) Pack {
  uint32_t words[4];
};

template <class Stored, int kElements>
using Run = std::conditional_t<kElements == 1, Stored, Pack>;  // as it lies in memory

template <class Stored, int kElements>
struct Elements {
  Stored at[kElements];
};

template <class To, class From>
GPUCOMM_BOTH To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

template <class Run>
GPUCOMM_BOTH Run load(const std::byte* from, size_t byte) {
#ifndef __CUDACC__
  accessed(from + byte, sizeof(Run), alignof(Run));
#endif
  return *reinterpret_cast<const Run*>(from + byte);
}

// nvcc makes one load of a Pack, but four stores.
template <class Run>
GPUCOMM_BOTH void store(std::byte* to, size_t byte, Run run) {
  auto* at = reinterpret_cast<Run*>(to + byte);
#ifndef __CUDACC__
  accessed(at, sizeof(Run), alignof(Run));
#endif
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<Run, Pack>)
    __stwb(reinterpret_cast<uint4*>(at), make_uint4(run.words[0], run.words[1], run.words[2], run.words[3]));
  else
#endif
    *at = run;
}

// Sources read side by side, before any is folded: memory answers late.
inline constexpr int kBatch = 4;

// kElements of every source from `byte` on, folded in the sources' order. kSources: their number where it is
// known to the compiler, else 0. All are read before any destination, which may be a source, is written.
template <class Form, class Operation, int kSources, int kElements, class Arguments>
GPUCOMM_BOTH void fold_elements(const Arguments& fold, size_t byte) {
  using Stored = typename Form::Stored;
  using Run = cuda::Run<Stored, kElements>;
  using Elements = cuda::Elements<Stored, kElements>;
  constexpr int kTogether = kSources ? kSources - 1 : kBatch;
  const int sources = kSources ? kSources : fold.source_count;
  const auto first = same_bits<Elements>(load<Run>(fold.sources[0], byte));
  typename Form::Folded running[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) running[e] = Form::load(first.at[e]);
#pragma unroll 1
  for (int s = 1; s < sources; s += kTogether) {
    Run runs[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (kSources || s + k < sources) runs[k] = load<Run>(fold.sources[s + k], byte);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (!kSources && s + k >= sources) break;
      const auto next = same_bits<Elements>(runs[k]);
#pragma unroll
      for (int e = 0; e < kElements; ++e) running[e] = Operation::apply(running[e], Form::load(next.at[e]));
    }
  }
  if constexpr (std::is_same_v<Operation, Sum>)
    if (fold.divisor > 1)
#pragma unroll
      for (int e = 0; e < kElements; ++e) running[e] = Divide::apply(running[e], fold.divisor);
  Elements result;
#pragma unroll
  for (int e = 0; e < kElements; ++e) result.at[e] = Form::store(running[e]);
#pragma unroll 1
  for (int d = 0; d < fold.destination_count; ++d) store(fold.destinations[d], byte, same_bits<Run>(result));
}

// The share of one of `threads` threads.
template <class Form, class Operation, int kSources, class Arguments>
GPUCOMM_BOTH void fold_share(const Arguments& fold, size_t thread, size_t threads) {
  using InPacks = Packed<Form, Operation>;
  constexpr size_t kSize = sizeof(typename Form::Stored);
  constexpr size_t kInPack = kPackBytes / sizeof(typename InPacks::Form::Stored);
  for (size_t pack = thread; pack < fold.packs; pack += threads)
    fold_elements<typename InPacks::Form, typename InPacks::Folding, kSources, kInPack>(
        fold, fold.head * kSize + pack * kPackBytes);
  const size_t packed = fold.packs * (kPackBytes / kSize);
  for (size_t i = thread; i < fold.count - packed; i += threads)
    fold_elements<Form, Operation, kSources, 1>(fold, (i < fold.head ? i : i + packed) * kSize);
}

}  // namespace gpucomm::cuda
