// What is known of a class of arrays: asked of it once.
#pragma once
#include <pybind11/pybind11.h>

#include "base/dlpack.h"

namespace gpucomm {

struct ArrayFacts {
  dlpack::ExchangeApi* api = nullptr;
  bool immutable = false;  // JAX arrays: DLPack does not mark them read-only
  bool mutable_ = false;   // of a library whose arrays may be written unless DLPack says otherwise
  bool numpy = false;      // numpy.ndarray itself
  bool masked = false;     // NumPy's, whose elements some do not count
  bool tensor = false;     // torch's
  bool lazy = false;       // has views that are conjugated or negated only when they are read
};

// As long as the class is there.
const ArrayFacts& facts_of(PyTypeObject* type);

}  // namespace gpucomm
