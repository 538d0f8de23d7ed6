// The kernels of reductions: fold_math.h by as many threads as the device holds at once.
#include <atomic>

#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/fold_table.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {

constexpr int kThreads = 256;

template <class Form, class Operation, int kSources>
__global__ void __launch_bounds__(kThreads) fold(const __grid_constant__ FoldArguments arguments) {
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  fold_share<Form, Operation, kSources>(arguments, thread, size_t{gridDim.x} * kThreads);
}

namespace {

// How many blocks of a kernel the current device holds at once; asked once a device.
size_t blocks_at_once(const void* kernel, int device, std::atomic<int>* known) {
  int blocks = device < kDevicesKnown ? known[device].load(std::memory_order_relaxed) : 0;
  if (blocks) return blocks;
  const OutsideCapture outside;  // the kernel may be loaded now
  int processors = 0, each = 0;
  GPUCOMM_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  GPUCOMM_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, 0));
  blocks = processors * each;
  if (device < kDevicesKnown) known[device].store(blocks, std::memory_order_relaxed);
  return blocks;
}

template <class Form, class Operation, int kSources>
void launch(const FoldArguments& arguments, int device, cudaStream_t stream) {
  static std::atomic<int> known[kDevicesKnown];
  const auto* kernel = reinterpret_cast<const void*>(&fold<Form, Operation, kSources>);
  const size_t single = arguments.count - arguments.packs * (kPackBytes / sizeof(typename Form::Stored));
  const size_t work = std::max(arguments.packs, single);
  const size_t blocks = std::min((work + kThreads - 1) / kThreads, blocks_at_once(kernel, device, known));
  void* parameters[] = {const_cast<FoldArguments*>(&arguments)};
  GPUCOMM_CUDA(
      cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), parameters, 0, stream));
}

// As on the host: one source is moved as it is, NaN too.
void copy(const FoldArguments& arguments, size_t bytes, cudaStream_t stream) {
  for (int d = 0; d < arguments.destination_count; ++d)
    if (arguments.destinations[d] != arguments.sources[0])
      GPUCOMM_CUDA(
          cudaMemcpyAsync(arguments.destinations[d], arguments.sources[0], bytes, cudaMemcpyDefault, stream));
}

}  // namespace

void reduce(const Fold& fold, int device, cudaStream_t stream) {
  const FoldArguments arguments = arguments_of(fold);
  if (fold.count == 0) return;
  if (arguments.source_count == 1 && arguments.divisor == 1)
    return copy(arguments, fold.count * size_of(fold.dtype), stream);
  with_fold(fold.dtype, fold.op, arguments.source_count, [&]<class Form, class Operation, int kSources>() {
    launch<Form, Operation, kSources>(arguments, device, stream);
  });
}

}  // namespace gpucomm::cuda
