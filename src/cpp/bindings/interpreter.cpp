#include "bindings/interpreter.h"

#include <pthread.h>

#include <atomic>

#include "base/error.h"

namespace gpucomm {

static std::atomic<bool> is_child{false};

bool forked() {
  [[maybe_unused]] static const int once = pthread_atfork(nullptr, nullptr, [] { is_child.store(true); });
  return is_child.load(std::memory_order_relaxed);
}

void check_not_forked() {
  if (forked())
    fail(ErrorKind::closed,
         "a communicator does not survive fork(), nor can a process have one that was forked from one which "
         "had: start ranks with gpucomm.local or gpucomm run");
}

bool interrupted() {
  if (finalizing()) return false;
  const pybind11::gil_scoped_acquire held;
  return PyErr_CheckSignals() != 0;
}

}  // namespace gpucomm
