// C++ errors become the classes of gpucomm.errors, looked up when first needed.
#include "base/error.h"
#include "bindings/bind.h"

namespace py = pybind11;

namespace gpucomm {

static const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "InvalidArgumentError";
    case ErrorKind::unsupported_type:
      return "UnsupportedTypeError";
    case ErrorKind::mismatch:
      return "MismatchError";
    case ErrorKind::timeout:
      return "CollectiveTimeoutError";
    case ErrorKind::peer_lost:
      return "PeerLostError";
    case ErrorKind::closed:
      return "ClosedError";
    case ErrorKind::unavailable:
      return "UnavailableError";
  }
  return "Error";
}

ErrorKind kind_of(const std::string& name) {
  int kind = 0;
  while (kind < static_cast<int>(ErrorKind::unavailable) && name != class_of(ErrorKind{kind})) ++kind;
  return ErrorKind{kind};
}

void raise(const Error& error) {
  py::set_error(py::module_::import("gpucomm.errors").attr(class_of(error.kind)), error.what());
}

void bind_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace gpucomm
