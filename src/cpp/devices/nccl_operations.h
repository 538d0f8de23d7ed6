// How our element types and operations are called in NCCL.
#pragma once
#include "base/dtype.h"

namespace gpucomm {

struct NcclOperation {
  int type, op;
};

// Throws unsupported_type for what NCCL does not reduce.
NcclOperation nccl_operation(Dtype dtype, Op op);

}  // namespace gpucomm
