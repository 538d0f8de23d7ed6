#include "devices/nccl_operations.h"

#include "base/error.h"
#include "devices/nccl_types.h"

namespace gpucomm {
namespace {

[[noreturn]] void refuse(Dtype dtype, Op op) {
  const bool of_16 = dtype == Dtype::int16 || dtype == Dtype::uint16;  // sums are one thing of both
  fail(ErrorKind::unsupported_type, "NCCL has no ", name_of(op), " of ",
       of_16 ? "16-bit integers" : concat(name_of(dtype), " elements"), ": any other algorithm has");
}

int type_of(Dtype dtype, Op op) {
  switch (dtype) {
    case Dtype::float64:
      return nccl::kFloat64;
    case Dtype::float32:
      return nccl::kFloat32;
    case Dtype::float16:
      return nccl::kFloat16;
    case Dtype::bfloat16:
      return nccl::kBfloat16;
    case Dtype::int8:
      return nccl::kInt8;
    case Dtype::int32:
      return nccl::kInt32;
    case Dtype::int64:
      return nccl::kInt64;
    case Dtype::uint8:
      return nccl::kUint8;
    case Dtype::boolean:
      return nccl::kUint8;
    default:
      refuse(dtype, op);
  }
}

}  // namespace

NcclOperation nccl_operation(Dtype dtype, Op op) {
  const int type = type_of(dtype, op);
  // As in reduce.h: of bool, which is 0 or 1, "or" is the largest and "and" the smallest.
  const bool logic = dtype == Dtype::boolean;
  if (logic && op == Op::mean) refuse(dtype, op);
  if (logic && (op == Op::sum || op == Op::bor)) op = Op::max;
  if (logic && (op == Op::prod || op == Op::band)) op = Op::min;
  switch (op) {
    case Op::sum:
    case Op::premul_sum:
      return {type, nccl::kSum};
    case Op::mean:
      return {type, nccl::kAvg};
    case Op::min:
      return {type, nccl::kMin};
    case Op::max:
      return {type, nccl::kMax};
    case Op::prod:
      return {type, nccl::kProd};
    default:
      refuse(dtype, op);
  }
}

}  // namespace gpucomm
