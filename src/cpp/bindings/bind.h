// What module.cpp calls. The bindings are the only files that include pybind11.
#pragma once
#include <pybind11/pybind11.h>

namespace gpucomm {
struct Error;
// Sets the Python exception of an error.
void raise(const Error& error);
// That of a class of gpucomm.errors, by its name.
enum class ErrorKind;
ErrorKind kind_of(const std::string& name);

void bind_errors(pybind11::module_& m);
void bind_plans(pybind11::module_& m);
void bind_reduce(pybind11::module_& m);
void bind_codecs(pybind11::module_& m);
void bind_wires(pybind11::module_& m);
void bind_nccl(pybind11::module_& m);
void bind_choose(pybind11::module_& m);
void bind_work(pybind11::module_& m);
void bind_communicator(pybind11::module_& m);
void bind_hot_path(pybind11::module_& m);
void bind_devices(pybind11::module_& m);
void bind_packs(pybind11::module_& m);
void bind_limit(pybind11::module_& m);
}  // namespace gpucomm
