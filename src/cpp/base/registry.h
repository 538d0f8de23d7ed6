// Plug-ins by name: an algorithm, transport or SIMD level is one file with one Registry<T>::Add at file
// scope.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace gpucomm {

// T needs `static constexpr const char* kKind`, the word that error texts use.
template <class T>
class Registry {
 public:
  static const std::map<std::string, T, std::less<>>& all() { return entries(); }

  static const T& find(std::string_view name) {
    auto found = entries().find(name);
    if (found == entries().end())
      fail(ErrorKind::invalid_argument, "unknown ", T::kKind, " '", name, "'; known: ", known());
    return found->second;
  }

  static std::string known() {
    std::string names;
    for (const auto& [name, entry] : entries()) names += (names.empty() ? "" : ", ") + name;
    return names;
  }

  struct Add {
    Add(std::string name, T entry) {
      if (!entries().emplace(name, std::move(entry)).second)
        throw std::logic_error(concat("two ", T::kKind, "s are registered as '", name, "'"));
    }
  };

 private:
  static std::map<std::string, T, std::less<>>& entries() {
    static std::map<std::string, T, std::less<>> map;
    return map;
  }
};

}  // namespace gpucomm
