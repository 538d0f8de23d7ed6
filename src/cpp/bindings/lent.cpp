#include "bindings/lent.h"

#include <iterator>
#include <utility>

#include "bindings/work.h"

namespace py = pybind11;

namespace gpucomm {

void Lent::lend_error(py::handle object) {
  if (error || object.is_none()) return;
  error.emplace(object, "error", true);
  error_object = py::reinterpret_borrow<py::object>(object);
}

KeptCall keep(const Lent& lent) {
  KeptCall kept{{}, lent.x, lent.result, lent.error_object, {}, lent.holds};
  if (lent.read) kept.memory[0] = lent.read->hold();
  if (lent.written && lent.written != lent.read) kept.memory[1] = lent.written->hold();
  if (lent.error) kept.memory[2] = lent.error->hold();
  return kept;
}

void KeptArrays::add(const std::shared_ptr<Pending>& call, KeptCall kept) {
  kept.call = call;
  kept_.push_back(std::move(kept));
}

// One at a time, from the end: there may be others, or fewer, when one has gone.
template <class Which>
void KeptArrays::release_where(Which which) {
  for (size_t i = kept_.size(); i-- > 0;) {
    if (i >= kept_.size() || !which(*kept_[i].call)) continue;
    std::swap(kept_[i], kept_.back());
    const KeptCall gone = std::move(kept_.back());
    kept_.pop_back();
  }
}

void KeptArrays::release_done() {
  release_where([](const Pending& call) { return ended(call); });
  if (KeptArrays& others = left(); this != &others && !others.kept_.empty()) try {
      others.release_done();
    } catch (const Error&) {  // their device has failed
      others.clear();
    }
}

// Never destroyed: what is left ends with the process.
KeptArrays& KeptArrays::left() {
  static auto* const all = new KeptArrays;
  return *all;
}

KeptArrays::~KeptArrays() {
  try {
    release_done();
  } catch (const Error&) {  // the device has failed
    return;
  }
  std::move(kept_.begin(), kept_.end(), std::back_inserter(left().kept_));
}

void KeptArrays::release(const Pending& wanted) {
  release_where([&](const Pending& call) { return &call == &wanted; });
}

}  // namespace gpucomm
