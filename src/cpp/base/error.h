// Every error of the core: a kind, which the bindings map to a Python class, and a sentence.
#pragma once
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpucomm {

enum class ErrorKind {
  invalid_argument,
  unsupported_type,
  mismatch,
  timeout,
  peer_lost,
  closed,
  unavailable
};

// A NUL would end a text wherever it is a C string: in what(), and on its way to other ranks.
inline std::string without_nul(std::string text) {
  for (size_t at; (at = text.find('\0')) != std::string::npos;) text.replace(at, 1, "\\0");
  return text;
}

struct Error : std::runtime_error {
  Error(ErrorKind kind, std::string text) : std::runtime_error(without_nul(std::move(text))), kind(kind) {}
  bool bad_argument() const {
    return kind == ErrorKind::invalid_argument || kind == ErrorKind::unsupported_type;
  }
  ErrorKind kind;
};

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // whatever the process has set: numbers are read again
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, concat(parts...));
}

// For what only a fault of gpucomm itself can break; never for a user's argument.
#define GPUCOMM_CHECK(condition)                                                                 \
  do {                                                                                           \
    if (!(condition))                                                                            \
      throw std::logic_error(gpucomm::concat(__FILE__, ":", __LINE__, ": broken: " #condition)); \
  } while (0)

}  // namespace gpucomm
