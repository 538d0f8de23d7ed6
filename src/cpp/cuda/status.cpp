// Status words as sentences.
#include "cuda/status.h"

#include <cmath>

#include "base/error.h"

namespace gpucomm::cuda {

std::string describe_status(Status status) {
  const auto fault = static_cast<Fault>(status >> 62);
  const Status rest = status & ((Status{1} << 62) - 1);
  const Status index = kLargestIndex - (rest >> 16);
  const float value = blocks::float_of(static_cast<uint32_t>(rest & 0xffff) << 16);
  if (fault == Fault::size)
    return concat("a coded message says that it has ", rest, " bytes, which cannot be of its elements");
  if (fault == Fault::place)
    return concat(
        "the coded bytes of a piece are damaged near element ", index,
        " of the piece, or are those of an element that a codec cannot carry, which its own rank tells");
  if (fault == Fault::none) return status ? concat("the status word ", status, " has no meaning") : "";
  const std::string what = concat("a codec cannot carry element ", index, " of a piece");
  if (std::isnan(value)) return what + ", which is nan: it has no code for NaN";
  if (std::isinf(value)) return concat(what, ", which is ", value, ": it has no code for Inf");
  return concat(what, ", which is about ", value, ": it is beyond the agreed largest magnitude");
}

}  // namespace gpucomm::cuda
