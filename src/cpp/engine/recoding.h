// Partial sums on their way: decoded onto the own operand, and encoded again for the next rank.
#pragma once
#include "engine/program.h"

namespace gpucomm {

// Marks where a decode_reduce and a copy before it that only makes room for the sum can be one pass over
// memory, and where it and the encode after it can, in which the sum itself is never written: it is not used
// again. Who runs the program may still do one after the other, as where it must tell what was lost.
//
// Source: fused decompress-reduce-compress, hZCCL (arXiv:2408.07422) and gZCCL (arXiv:2308.05199).
void pair_recodings(Program& program);
// Takes back what was marked of this decode_reduce.
void part_recoding(Program& program, Instruction& in);

}  // namespace gpucomm
