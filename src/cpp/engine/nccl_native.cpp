#include "engine/nccl_native.h"

#include "base/error.h"
#include "devices/nccl_operations.h"

namespace gpucomm {
namespace {

void check_offered(Collective collective) {
  if (reduces(collective) || collective == Collective::broadcast || collective == Collective::all_gather)
    return;
  fail(ErrorKind::unavailable, "NCCL 2.18 has no ", name_of(collective),
       ": any algorithm that offers it has");
}

void check_way(const Shape& shape) {
  if (shape.on_device && shape.way == DeviceWay::nccl) return;
  fail(ErrorKind::invalid_argument, "algorithm 'native' is NCCL's own collective, for arrays that travel ",
       "over NCCL: these are ",
       !shape.on_device                 ? "in host memory"
       : shape.way == DeviceWay::staged ? "on a device and travel through host memory"
                                        : "on a device and travel through memory that the ranks share",
       shape.on_device ? " (GPUCOMM_DEVICE_TRANSPORT=nccl asks for NCCL)" : "");
}

}  // namespace

void check_native(const Shape& shape) {
  check_way(shape);
  check_offered(shape.collective);
  if (shape.codec) fail(ErrorKind::invalid_argument, "algorithm 'native' takes no codec");
  if (!shape.counts.empty())
    fail(ErrorKind::invalid_argument, "algorithm 'native' takes no counts: NCCL's parts are all alike");
  if (reduces(shape.collective)) nccl_operation(shape.dtype, shape.op);
}

void enqueue_native(const Shape& shape, const Arrays& arrays, NcclCommunicator& communicator, Stream stream) {
  check_offered(shape.collective);
  const auto [in, out] = std::pair(arrays.input, arrays.output);
  const size_t each = shape.count / communicator.world(), item = size_of(shape.dtype);
  if (!shape.count) return;
  switch (shape.collective) {
    case Collective::all_reduce:
      return communicator.all_reduce(in, out, shape.count, shape.dtype, shape.op, stream);
    case Collective::reduce:
      return communicator.reduce(in, out, shape.count, shape.dtype, shape.op, shape.root, stream);
    case Collective::broadcast:
      return communicator.broadcast(in, out, shape.count * item, shape.root, stream);
    case Collective::all_gather:
      return communicator.all_gather(in, out, each * item, stream);
    default:
      return communicator.reduce_scatter(in, out, each, shape.dtype, shape.op, stream);
  }
}

}  // namespace gpucomm
