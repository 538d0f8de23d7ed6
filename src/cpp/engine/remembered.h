// What was made of the shapes of calls, to be used again. Where it is too much all is forgotten: few jobs
// make calls of so many.
#pragma once
#include <cstddef>
#include <map>
#include <utility>

namespace gpucomm {

template <class Key, class Value>
class Remembered {
 public:
  // Null: it is not known.
  const Value* find(const Key& key) const {
    const auto found = known_.find(key);
    return found == known_.end() ? nullptr : &found->second;
  }
  // What was not known, and has so many instructions for a rank, at most; it stays until the next one comes.
  const Value& add(Key key, Value value, size_t instructions) {
    constexpr size_t kMost = 512, kMostInstructions = 1 << 20;  // about 220 bytes each
    if (known_.size() >= kMost || instructions_ + instructions > kMostInstructions) clear();
    instructions_ += instructions;
    return known_.emplace(std::move(key), std::move(value)).first->second;
  }
  void clear() { known_.clear(), instructions_ = 0; }

 private:
  std::map<Key, Value> known_;
  size_t instructions_ = 0;  // of them all
};

}  // namespace gpucomm
