// A plan's steps with their sizes filled in: the instructions of a program.
#pragma once
#include <vector>

#include "engine/program.h"
#include "plans/plan.h"

namespace gpucomm {

// Adds them to a program whose shape and slots are known, with the lanes that they are on. The output is cut
// by `out_layout`. `receivers`: by step.
void add_instructions(Program& program, const Plan& plan, const Layout& layout, const Layout& out_layout,
                      const std::vector<Receiver>& receivers);

}  // namespace gpucomm
