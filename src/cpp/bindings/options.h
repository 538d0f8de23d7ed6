// What a call and a communicator are told beside arrays, and how signatures name it.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/given.h"
#include "bindings/names.h"
#include "bindings/texts.h"
#include "plans/links.h"

namespace gpucomm {

using Factor = std::optional<double>;  // of premul_sum

// As signatures name them.
using Maybe = std::optional<double>;
using Object = pybind11::object;
using Handle = std::optional<uintptr_t>;  // of a stream

// None and "auto": the cheapest. Looked at as a timeout is.
struct Segments {
  Object given = pybind11::none();
  operator std::optional<int>() const;
};

// Python's or NumPy's.
inline bool is_bool(pybind11::handle value) {
  return PyBool_Check(value.ptr()) || type_name(value) == "numpy.bool" || type_name(value) == "numpy.bool_";
}

// Seconds, or what somebody has taken for them: looked at in the call, whose other end is told then.
struct Timeout {
  Object given = pybind11::none();
  operator Maybe() const {
    if (given.is_none()) return {};
    const bool number = !is_bool(given);
    const double seconds = number ? PyFloat_AsDouble(given.ptr()) : 0;
    if (number && !PyErr_Occurred()) return seconds;
    PyErr_Clear();
    fail(ErrorKind::invalid_argument, "timeout must be a positive, finite number of seconds, got ",
         shown(given));
  }
};

// The keywords that every collective takes. As long as the call.
struct Options {
  Text algorithm;
  std::optional<int> segments;
  std::optional<double> timeout_s;
  bool async_op = false;
  Handle stream{};  // of arrays on a device; else what their library tells
  std::optional<std::string> codec{};
  pybind11::object error = pybind11::none();  // where it goes what the codec loses
  uint64_t pack = 0;                          // as in Shape
  double* lost_sq = nullptr;
};

// Links that change: from so many seconds on the s a byte of each place, as Links::betas, overhead, latency
// and jitter, in seconds.
using Script = std::vector<std::tuple<double, std::vector<double>, double, double, double>>;

// Links to emulate: the model, and what is beyond it.
struct Emulation {
  Links links;
  bool half_duplex = false;
  double jitter_s = 0;
  uint64_t seed = 0;
  Script script;
  uint64_t began_ns = 0;  // as in EmulatedLinks
};

}  // namespace gpucomm

template <>
struct pybind11::detail::type_caster<gpucomm::Timeout> : gpucomm::GivenCaster<gpucomm::Timeout> {
  static constexpr auto name = const_name("typing.SupportsFloat | typing.SupportsIndex | None");
};

template <>
struct pybind11::detail::type_caster<gpucomm::Segments> : gpucomm::GivenCaster<gpucomm::Segments> {
  static constexpr auto name = const_name("int | typing.Literal['auto'] | None");
};
