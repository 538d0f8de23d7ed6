// Arguments that are taken whatever they are, and looked at in the call, whose other ranks are told then.
#pragma once
#include <pybind11/pybind11.h>

namespace gpucomm {

// The caster of a struct with what was `given`; its own says how signatures name that.
template <class T>
struct GivenCaster {
  PYBIND11_TYPE_CASTER(T, pybind11::detail::const_name("object"));

  bool load(pybind11::handle object, bool) {
    value.given = pybind11::reinterpret_borrow<pybind11::object>(object);
    return true;
  }
  static pybind11::handle cast(const T& argument, pybind11::return_value_policy, pybind11::handle) {
    return argument.given.inc_ref();
  }
};

}  // namespace gpucomm
