// Arrays in host memory of asynchronous calls under way in this process, on any communicator. Who writes one
// meanwhile, or reads what is being written, would find some of both states. What is on a device its streams
// order. Guarded by the GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>

#include "bindings/array.h"
#include "engine/drivable.h"

namespace gpucomm {

// Fails where what a call reads or writes (null: nothing) overlaps what one under way writes, or what it
// writes overlaps what one under way reads. `error`: what it writes too.
void check_apart(const Array* read, const Array* written, const Array* error = nullptr);
// Fails where what one under way writes overlaps these.
void check_settled(const std::byte* begin, size_t bytes);
// `name`: of the call, for error texts.
void now_in_flight(const std::shared_ptr<Pending>& call, const char* name, const Array* read,
                   const Array* written, const Array* error = nullptr);

// Arrays into which the result of a call under way will be copied: in flight until this is released.
class Awaiting {
 public:
  explicit Awaiting(const pybind11::list& arrays);
  ~Awaiting() { release(); }
  void release() { *done_ = true; }

 private:
  std::shared_ptr<std::atomic<bool>> done_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace gpucomm
