// Which messages of a program are answered into the memory that they were sent from.
#pragma once
#include "engine/program.h"

namespace gpucomm {

// Fills in `number`, `answer` and `answers` of the instructions.
//
// A chunk of an all_reduce in place goes to the rank that folds it and comes back as the result, to the same
// place. Where the memory is shared the folding rank reads it there and writes the result there in one go,
// while its cache holds the lines: lines that a peer has only read are dear to rewrite.
void pair_answers(Program& program);

}  // namespace gpucomm
