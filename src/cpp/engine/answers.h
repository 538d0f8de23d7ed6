// Which messages of a program are answered where the answer belongs.
#pragma once
#include "engine/program.h"

namespace gpucomm {

// Fills in `number`, `answer`, `answered_by` and `answers` of the instructions.
//
// A chunk of an all_reduce goes to the rank that folds it and comes back as the result, in place to where it
// came from. Where the folding rank can read it there it writes the result in one go, while its cache holds
// the lines: lines that a peer has only read are dear to rewrite.
void pair_answers(Program& program);

}  // namespace gpucomm
