// Calls whose contributions are multiplied by a factor into scratch, x itself being left as it is: as many
// calls, one after another, as keep that scratch bounded.
#pragma once
#include <vector>

#include "engine/call.h"

namespace gpucomm {

struct PartCall {
  Shape shape;
  Arrays arrays;
};

// Whether this rank's contribution is multiplied into scratch.
inline bool multiplies_apart(const Shape& call, const Arrays& arrays) {
  return arrays.factor && (scatters(call.collective) || !arrays.output);
}

// A reduce or reduce_scatter of arrays on the host, cut alike on all ranks. Of a reduce_scatter each part has
// a piece of every rank's chunk.
std::vector<PartCall> in_parts(const Shape& call, const Arrays& arrays, int world);

}  // namespace gpucomm
