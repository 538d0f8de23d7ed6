// A list or tuple of arrays goes to Python, which packs the small ones.
#pragma once
#include <utility>

#include "bindings/collectives.h"

namespace gpucomm {

inline bool several(const Object& x) { return PyList_Check(x.ptr()) || PyTuple_Check(x.ptr()); }

template <class... Keywords>
Object coalesced(PyCommunicator& c, const char* collective, Object xs, Keywords&&... keywords) {
  return pybind11::module_::import("gpucomm.coalesce")
      .attr("run")(pybind11::cast(&c), collective, xs, std::forward<Keywords>(keywords)...);
}

}  // namespace gpucomm
