// The arrays of a call: borrowed once, for a library may give other memory when it is asked again; and of an
// asynchronous one kept until it has ended.
#pragma once
#include <pybind11/pybind11.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/array.h"
#include "engine/drivable.h"

namespace gpucomm {

struct Lent {
  pybind11::object x, result;
  const Array* read = nullptr;  // what of the two the call reads and writes
  const Array* written = nullptr;
  std::optional<Array> error{};  // it writes that too
  std::vector<Hold> holds{};     // of a list
  pybind11::object error_object = pybind11::none();

  void lend_error(pybind11::handle object);
  const Array* error_array() const { return error ? &*error : nullptr; }
};

// What an asynchronous call needs until it has ended.
struct KeptCall {
  std::shared_ptr<Pending> call;
  pybind11::object x, result, error;
  std::array<Hold, 3> memory;  // read, written, error
  std::vector<Hold> list;
};
KeptCall keep(const Lent& lent);

// Guarded by the GIL. What is let go may make calls as it goes. What a device still works on when this ends
// stays until it has ended, as far as anybody looks: at each release_done().
class KeptArrays {
 public:
  KeptArrays() = default;
  KeptArrays(const KeptArrays&) = delete;
  ~KeptArrays();
  void add(const std::shared_ptr<Pending>& call, KeptCall kept);
  void release_done();
  void release(const Pending& call);
  void clear() { std::vector<KeptCall>().swap(kept_); }

 private:
  static KeptArrays& left();  // by those that have ended
  template <class Which>
  void release_where(Which which);
  std::vector<KeptCall> kept_;
};

}  // namespace gpucomm
