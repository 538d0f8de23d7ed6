// Whole numbers among arguments.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/given.h"
#include "bindings/parts.h"

namespace gpucomm {

// Of what has an __index__ and is no bool; nothing of all else and of what 64 bits do not hold. An __int__ is
// not enough: it cuts 1.9 to 1.
std::optional<int64_t> whole(pybind11::handle given);

// Somebody has taken it for a whole number.
struct Whole {
  pybind11::object given = pybind11::none();
};
using Wholes = std::optional<std::vector<Whole>>;

// These throw invalid_argument.
int number_of(const char* name, const Whole& given);
Counts counts_of(const char* name, const Wholes& given);

}  // namespace gpucomm

template <>
struct pybind11::detail::type_caster<gpucomm::Whole> : gpucomm::GivenCaster<gpucomm::Whole> {
  static constexpr auto name = const_name("typing.SupportsIndex");
};
