// What goes on in Python: a list or tuple of arrays, of which small ones are packed, and a bounded error.
#pragma once
#include <utility>

#include "bindings/collectives.h"
#include "bindings/whole.h"

namespace gpucomm {

inline bool several(const Object& x) { return PyList_Check(x.ptr()) || PyTuple_Check(x.ptr()); }

// What they get of arguments that are looked at in the call.
inline Maybe seconds(PyCommunicator& c, const Timeout& timeout) {
  return c.located([&] { return Maybe(timeout); });
}
inline std::optional<int> pieces(PyCommunicator& c, const Segments& segments) {
  return c.located([&] { return std::optional<int>(segments); });
}
inline int rank_of(PyCommunicator& c, const Whole& root) {
  return c.located([&] { return number_of("root", root); });
}

template <class... Keywords>
Object coalesced(PyCommunicator& c, const char* collective, Object xs, Keywords&&... keywords) {
  return pybind11::module_::import("gpucomm.coalesce")
      .attr("run")(pybind11::cast(&c), collective, xs, std::forward<Keywords>(keywords)...);
}

template <class... Keywords>
Object bounded(PyCommunicator& c, Object x, double max_rel_err, Keywords&&... keywords) {
  return pybind11::module_::import("gpucomm.bounded")
      .attr("all_reduce")(pybind11::cast(&c), x, max_rel_err, std::forward<Keywords>(keywords)...);
}

}  // namespace gpucomm
