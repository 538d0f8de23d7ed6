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

// Where the interpreter ends, nothing can be imported any more: Python's own error says so.
void raise(const Error& error) try {
  const std::string_view text = error.what();
  // Texts of others, a path or a peer's, may be no UTF-8, or cut within a character.
  const auto said =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(text.data(), text.size(), "backslashreplace"));
  const auto type = py::module_::import("gpucomm.errors").attr(class_of(error.kind));
  PyErr_SetObject(type.ptr(), said.ptr());
} catch (py::error_already_set& failed) {
  failed.restore();
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
