// Short tables, the usual first: quicker than to hash.
#pragma once
#include <cstddef>
#include <utility>

namespace gpucomm {

template <class Key, class Value, size_t N>
const Value* find(const std::pair<Key, Value> (&table)[N], const Key& key) {
  for (const auto& [known, value] : table)
    if (known == key) return &value;
  return nullptr;
}

}  // namespace gpucomm
