// The folds and operations on pairs of a GPU on the host, threads counted by a loop; test_cuda_math.py calls
// them.
#include <cstdlib>

#include "cuda/pairs_math.h"

void gpucomm::cuda::accessed(const void* at, size_t, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(at) % alignment) std::abort();
}

// Returns the elements that were moved in packs.
extern "C" size_t cuda_fold(int dtype, int op, int divisor, const std::byte* const* sources, int source_count,
                            std::byte* const* destinations, int destination_count, size_t count,
                            size_t threads) {
  using namespace gpucomm;
  Fold fold{static_cast<Dtype>(dtype), static_cast<Op>(op), divisor};
  fold.sources.assign(sources, sources + source_count);
  fold.destinations.assign(destinations, destinations + destination_count);
  fold.count = count;
  const cuda::FoldArguments arguments = cuda::arguments_of(fold);
  cuda::with_fold(fold.dtype, fold.op, source_count, [&]<class Form, class Operation, int kSources>() {
    for (size_t thread = threads; thread-- > 0;)
      cuda::fold_share<Form, Operation, kSources>(arguments, thread, threads);
  });
  return arguments.packs * cuda::kPackBytes / size_of(fold.dtype);
}

// Of an array's sum with itself what the last of as many threads as there are packs does.
extern "C" void cuda_double_last_pack(int dtype, std::byte* array, size_t count) {
  using namespace gpucomm;
  Fold fold{static_cast<Dtype>(dtype), Op::sum, 1};
  fold.sources = {array, array}, fold.destinations = {array}, fold.count = count;
  const cuda::FoldArguments arguments = cuda::arguments_of(fold);
  cuda::with_fold(fold.dtype, fold.op, 2, [&]<class Form, class Operation, int kSources>() {
    cuda::fold_share<Form, Operation, kSources>(arguments, arguments.packs - 1, arguments.packs);
  });
}

extern "C" void cuda_scale(int dtype, double factor, const std::byte* from, std::byte* to, size_t count,
                           size_t threads) {
  using namespace gpucomm;
  const auto arguments = cuda::arguments_of(static_cast<Dtype>(dtype), to, from, count, factor);
  cuda::with_form(static_cast<Dtype>(dtype), [&]<class Form>() {
    for (size_t thread = threads; thread-- > 0;)
      cuda::pair_share<Form, cuda::Multiplied>(arguments, thread, threads);
  });
}

extern "C" void cuda_difference(int dtype, int times, const std::byte* dense, std::byte* error, size_t count,
                                size_t threads) {
  using namespace gpucomm;
  const auto arguments = cuda::arguments_of(static_cast<Dtype>(dtype), error, dense, count, times);
  cuda::with_narrow_form(static_cast<Dtype>(dtype), [&]<class Form>() {
    for (size_t thread = threads; thread-- > 0;)
      cuda::pair_share<Form, cuda::Difference>(arguments, thread, threads);
  });
}
